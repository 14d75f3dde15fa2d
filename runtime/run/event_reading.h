// Reads the log of a run, whose events may be of any version and whose last line a kill may have torn, and
// fields of other JSON that is as little to be trusted. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/run/event.h"

namespace holdfast::run {

// Calls back for every event in the order of the log, its fields in the order of the line; lines that are not
// whole are skipped.
void for_each_event(std::string_view event_lines, const std::function<void(const Json&)>& take);

// Fields of one object. A field of another type counts as missing.
double number_of(const Json& json, std::string_view key, double otherwise);
std::uint64_t count_of(const Json& json, std::string_view key, std::uint64_t otherwise = 0);
std::string text_of(const Json& json, std::string_view key);  // missing: empty

// Returns what events of all kinds have, also of kinds that this version does not know.
std::string_view event_kind(const Json& event);              // a view of the event; empty: it is none
std::int64_t event_time(const Json& event);                  // microseconds since 1970; 0: not known
std::optional<std::uint64_t> event_step(const Json& event);  // most kinds have it

// Reads a field of an event. Returns whether the value is of its type; if not, the field stays as it is.
bool read_event_field(const Json& value, double& field);
bool read_event_field(const Json& value, bool& field);
bool read_event_field(const Json& value, std::string& field);
bool read_event_field(const Json& value, Digest& field);
bool read_event_field(const Json& value, std::map<std::string, int>& field);
bool read_event_field(const Json& value, std::map<std::string, std::string>& field);
bool read_event_field(const Json& value, std::vector<EventKernel>& field);
bool read_event_field(const Json& value, std::vector<std::uint64_t>& field);
bool read_event_field(const Json& value, std::variant<double, std::int64_t>& field);
// Integers in events are never negative. One that is too large becomes half the largest of a signed type, so
// that differences and sums of two times hold.
template <JsonNumber T>
bool read_event_field(const Json& value, T& field) {
  if (!value.is_number_unsigned()) return false;
  constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
  field =
      static_cast<T>(std::min(value.get<std::uint64_t>(), std::is_signed_v<T> ? largest / 2 + 1 : largest));
  return true;
}
template <EventRecord T>
bool read_event_field(const Json& value, std::vector<T>& field) {
  if (!value.is_array()) return false;
  field.clear();
  for (const Json& each : value) {
    T::visit_fields(field.emplace_back(), [&each](std::string_view name, auto& member) {
      const JsonIterator found = each.find(name);
      if (found != each.end()) read_event_field(*found, member);
    });
  }
  return true;
}
template <typename T>
bool read_event_field(const Json& value, std::optional<T>& field) {
  T read{};
  if (!read_event_field(value, read)) return false;
  field = std::move(read);
  return true;
}
template <typename T>
bool read_event_field(const Json& value, OrNull<T>& field) {
  return read_event_field(value, field.value);
}

// Returns the event if it is of this kind. Fields that the line does not have, or has with another type, are
// those of `otherwise`.
template <Event E>
std::optional<E> event_as(const Json& json, E otherwise = {}) {
  if (event_kind(json) != E::kind) return std::nullopt;
  otherwise.time_us = event_time(json);
  E::visit_fields(otherwise, [&json](std::string_view name, auto& field, auto&&...) {
    const JsonIterator found = json.find(name);
    if (found != json.end()) read_event_field(*found, field);
  });
  return otherwise;
}

// Returns what steps have used of the sources of a start. `samples`: StepEvent::source_samples; `tokens`: of all of them.
// Empty where the samples are not known, or are of other sources.
std::vector<SourceUse> uses_of(const std::vector<EventSource>& sources,
                               std::span<const std::uint64_t> samples, std::uint64_t tokens);
// "a.txt: 1234 samples, 78976 tokens, 0.41 epochs"
std::string text_of(const SourceUse& use);

// The schema of the events of a run's log, for people and tests: made from the structs of event.h. The tests
// of whole runs compare the logs that they find with its page, docs/events.md.
struct EventField {
  std::string_view name;
  std::string_view
      type;  // "integer", "number" (null where it is not finite), "text", "boolean", "object", "list"
  std::string_view unit;  // empty: none, or the name says it
  std::string_view meaning;
  bool always = true;  // false: not in every event of the kind; the meaning says when
};

// One kind of event. Beside its fields each has `event`, its name, and `time_us`.
struct EventKind {
  std::string_view name;
  std::string_view meaning;
  std::vector<EventField> fields;
};

std::vector<EventKind> event_schema();

// Returns the page for people: docs/events.md.
std::string event_reference();

}  // namespace holdfast::run
