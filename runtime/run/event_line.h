// EventLine: one line of the event log, and put_event(), which fills it from an event (event.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/run/event.h"

namespace holdfast::run {

// Builds one line in a buffer that is reused, so that the training loop does not allocate. Doubles are
// written with 17 significant digits (they read back to the same bits); NaN and infinities as null.
class EventLine {
 public:
  EventLine();
  EventLine& begin(std::string_view event, std::int64_t time_us);  // {"event":"...","time_us":...
  EventLine& field(std::string_view name, double value);
  EventLine& field(std::string_view name, int value) { return field(name, std::int64_t{value}); }
  EventLine& field(std::string_view name, std::int64_t value);
  EventLine& field(std::string_view name, std::uint64_t value);
  EventLine& field(std::string_view name,
                   std::string_view value);  // escaped; bytes that are not UTF-8 become U+FFFD
  EventLine& null_field(std::string_view name);
  EventLine& truth_field(std::string_view name, bool value);
  EventLine& counts(std::string_view name, const std::map<std::string, int>& counts);  // an object
  EventLine& object(std::string_view name);  // the fields up to end_object() are inside it
  EventLine& end_object();
  std::string_view end();  // closes the object; valid until the next begin()

 private:
  std::string text_;
};

// Writes one field of an event as its type says (event.h).
template <typename T>
void put_event_field(std::string_view name, const T& value, EventLine& line) {
  line.field(name, value);
}
inline void put_event_field(std::string_view name, bool value, EventLine& line) {
  line.truth_field(name, value);
}
inline void put_event_field(std::string_view name, const Digest& value, EventLine& line) {
  line.field(name, hex_text(value).view());
}
inline void put_event_field(std::string_view name, const std::map<std::string, int>& value, EventLine& line) {
  line.counts(name, value);
}
void put_event_field(std::string_view name, const std::vector<EventKernel>& value, EventLine& line);
inline void put_event_field(std::string_view name, const std::variant<double, std::int64_t>& value,
                            EventLine& line) {
  std::visit([&](auto number) { line.field(name, number); }, value);
}
template <typename T>
void put_event_field(std::string_view name, const std::optional<T>& value, EventLine& line) {
  if (value.has_value()) put_event_field(name, *value, line);
}
template <typename T>
void put_event_field(std::string_view name, const OrNull<T>& value, EventLine& line) {
  if (value.value.has_value()) {
    put_event_field(name, *value.value, line);
  } else {
    line.null_field(name);
  }
}

// Begins the line and fills it with the event. Allocates nothing if the buffer has grown before.
template <Event E>
EventLine& put_event(const E& event, EventLine& line) {
  line.begin(E::kind, event.time_us);
  E::visit_fields(event, [&line](std::string_view name, const auto& value, auto&&...) {
    put_event_field(name, value, line);
  });
  return line;
}

}  // namespace holdfast::run
