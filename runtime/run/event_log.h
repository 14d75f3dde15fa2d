// The event log: one JSON object per line in RUN/events.jsonl, the source of truth from which console, report
// and all metrics derive. Rank 0 writes it, and the launcher adds its own events between two starts. A line
// is written by one append, so lines of both do not mix and a killed run leaves whole lines, except perhaps
// the last; readers skip incomplete lines. Lines that cannot be written wait (line_log.h), and training goes
// on: lines of one writer stay in order, while lines that waited may come after younger lines of the other.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/line_thread.h"
#include "runtime/run/event_line.h"
#include "runtime/run/line_log.h"

namespace holdfast::run {

// Writes lines at once, on the calling thread, as the launcher does between two starts.
class EventLog final : public LineSink {
 public:
  // Opens the log. The next line begins another part (event_parts.h) when the log has grown to
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
  EventQueue(Env& env, const std::string& path, std::uint64_t rotate_bytes = 0,
             std::function<void()> before_line = {}, std::function<bool()> may_write = {});
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
