// The event log: one JSON object per line in RUN/events.jsonl, the source of truth from which console, report
// and all metrics derive. Rank 0 writes, and the launcher what it did between two starts. A line is written
// by one append, so lines of both do not mix and a killed run leaves whole lines, but for the last; readers
// skip a torn last line, and a writer that continues such a file starts a new line first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/core/env.h"
#include "runtime/core/result.h"

namespace holdfast {

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
  EventLine& object(std::string_view name);  // the fields up to end_object() are inside it
  EventLine& end_object();
  std::string_view end();  // closes the object; valid until the next begin()

 private:
  std::string text_;
};

// Starts a new line in a file of lines whose last line was torn by a kill.
Result<void> end_torn_line(Env& env, const std::string& path);

class EventLog {
 public:
  EventLog(Env& env, std::string path) : env_(&env), path_(std::move(path)) {}
  Result<void> open();  // ends a torn last line
  Result<void> write(EventLine& line);
  EventLine& line() { return line_; }

 private:
  Env* env_;
  std::string path_;
  EventLine line_;
};

}  // namespace holdfast
