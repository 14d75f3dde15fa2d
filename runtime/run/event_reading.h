// Reads the log of a run, whose events may be of any version and whose last line a kill may have torn, and
// fields of other JSON that is as little to be trusted. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/event.h"
#include "runtime/run/run_directory.h"

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
bool read_event_field(const Json& value, std::vector<EventKernel>& field);
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

// The event log of a run as readers find it: RUN/events-0001.jsonl, events-0002.jsonl, ... in the order in
// which they were written, and RUN/events.jsonl, the newest part, which grows (EventLog). Read as one text.

// A log that grew too large becomes a part, by a rename after its last whole line, so that a kill leaves every
// line in one place. Returns the path of a part. `path` is that of the growing log, ending in .jsonl.
std::string event_part(const std::string& path, std::uint64_t number);
// Returns the numbers of the existing parts, ascending.
Result<std::vector<std::uint64_t>> event_parts(Env& env, const std::string& path);
// Turns the growing log into the newest part; the next line begins another log.
Result<void> rotate_events(Env& env, const std::string& path);

// A view of the log at one moment. Threads: one at a time.
class LogReader {
 public:
  // Opens all parts that are there; one that is rotated meanwhile is neither missed nor seen twice. Error:
  // one of them cannot be read, or (ExitCode::config) there is no log.
  static Result<LogReader> open(Env& env, const RunPaths& paths);

  std::uint64_t bytes() const { return bytes_; }
  // Reads `bytes` from `begin` on, which must be there.
  Result<std::string> read(std::uint64_t begin, std::uint64_t bytes) const;
  // Calls back for every event in the order of the log, part by part; lines that are not whole are skipped.
  Result<void> for_each(const std::function<void(const Json&)>& take) const;
  // Returns a sentence on parts that were removed from outside; empty when none is missing.
  const std::string& warning() const { return warning_; }

 private:
  struct Part {
    std::unique_ptr<File> file;
    std::uint64_t bytes = 0;
  };
  LogReader() = default;
  std::vector<Part> parts_;
  std::uint64_t bytes_ = 0;
  std::string warning_;
};

// All of the log, and how many bytes that is: 0 without a log.
std::uint64_t log_bytes(Env& env, const RunPaths& paths);

}  // namespace holdfast::run
