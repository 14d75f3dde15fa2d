// The event log: one JSON object per line in RUN/events.jsonl, the source of truth from which console, report
// and all metrics derive. Rank 0 writes it, and the launcher adds its own events between two starts. A line
// is written by one append, so lines of both do not mix and a killed run leaves whole lines, except perhaps
// the last; readers skip incomplete lines. Lines that cannot be written wait (line_log.h), and training goes
// on: lines of one writer stay in order, while lines that waited may come after younger lines of the other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/line_thread.h"
#include "runtime/run/event.h"
#include "runtime/run/line_log.h"

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
  EventLine& list(std::string_view name);  // the elements up to end_list() are inside it
  EventLine& element();                    // an object, as object()
  EventLine& element(std::uint64_t value);
  EventLine& end_list();
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
inline void put_event_field(std::string_view name, const std::map<std::string, std::string>& value,
                            EventLine& line) {
  line.object(name);
  for (const auto& [key, text] : value) line.field(key, std::string_view(text));
  line.end_object();
}
void put_event_field(std::string_view name, const std::vector<EventKernel>& value, EventLine& line);
void put_event_field(std::string_view name, const std::vector<std::uint64_t>& value, EventLine& line);
template <EventRecord T>
void put_event_field(std::string_view name, const std::vector<T>& value, EventLine& line) {
  line.list(name);
  for (const T& each : value) {
    line.element();
    T::visit_fields(each,
                    [&line](std::string_view key, const auto& field) { put_event_field(key, field, line); });
    line.end_object();
  }
  line.end_list();
}
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

// Writes lines at once, on the calling thread, as the launcher does between two starts.
class EventLog final : public LineSink {
 public:
  // Opens the log. The next line begins another part (log_reader.h) when the log has grown to
  // `rotate_bytes`; 0: never. `before_line` is called before each append(), for tests. `may_write` returns
  // false when the file belongs to another writer by now; then lines, including the waiting ones, are
  // dropped.
  EventLog(Env& env, const std::string& path, std::uint64_t rotate_bytes = 0,
           std::function<void()> before_line = {}, std::function<bool()> may_write = {});
  ~EventLog() override { static_cast<void>(is_closed()); }
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;
  // Writes an event (event.h), or a line, to the file, or keeps it in memory until it can be written. When memory for waiting lines
  // is full, the oldest are dropped, because the newest show the state of the run; a "gap" event after the
  // remaining lines gives the number of dropped ones.
  void write(const Event auto& event) { write(put_event(event, line_)); }
  void write(EventLine& line) { static_cast<void>(append(line.end()).ok()); }
  Result<void> append(std::string_view line) override;  // never an error
  // Both do what those of a LineLog do: for the start of a run, whose log must be writable, and for its end.
  Result<void> insist(std::string_view line) override;
  Result<void> flush() override;
  void retry();
  // Must be called before the next line when another writer may have died in the middle of one.
  void others_have_written() override;
  void lost(std::uint64_t lines) override;  // a "gap" event records them

 private:
  bool is_closed();
  void note_gap();
  void rotate();
  Env* env_;
  std::string path_;
  std::uint64_t rotate_bytes_;
  std::function<void()> before_line_;
  std::function<bool()> may_write_;
  std::optional<std::uint64_t> bytes_;  // of the newest part; none: unknown
  LineLog lines_;
  EventLine line_;
};

// The event log of a rank that trains: like EventLog, but on a thread of its own (line_thread.h).
class EventQueue {
 public:
  // `wrap` may put another sink before the log, which passes lines on.
  EventQueue(Env& env, const std::string& path, std::uint64_t rotate_bytes = 0,
             std::function<void()> before_line = {}, std::function<bool()> may_write = {},
             const std::function<std::unique_ptr<LineSink>(std::unique_ptr<LineSink>)>& wrap = {});
  void write(const Event auto& event) {
    static_cast<void>(lines_.append(put_event(event, line_).end()).ok());
  }
  Result<void> insist(const Event auto& event) { return lines_.insist(put_event(event, line_).end()); }
  Result<void> flush(std::int64_t patience_ms = LineThread::patience_ms) { return lines_.flush(patience_ms); }
  void others_have_written() { lines_.others_have_written(); }
  // Runs work on the log's thread, between the lines before it and those after it; nothing waits for it.
  void post(std::function<void(LineSink&)> work) { lines_.post(std::move(work)); }

 private:
  EventLine line_;
  LineThread lines_;
};

}  // namespace holdfast::run
