// The event log of a run as readers find it: RUN/events-0001.jsonl, events-0002.jsonl, ... in the order in
// which they were written, and RUN/events.jsonl, the newest part, which grows (EventLog). Read as one text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

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
  // Returns how many of them are in the part that grows.
  std::uint64_t newest_bytes() const { return newest_bytes_; }
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
  std::uint64_t bytes_ = 0, newest_bytes_ = 0;
  std::string warning_;
};

// Follows a log that grows.
class LogFollower {
 public:
  // Begins with what the log has after `begin` bytes.
  LogFollower(Env& env, RunPaths paths, std::uint64_t begin = 0)
      : env_(&env), paths_(std::move(paths)), bytes_(begin) {}
  // Calls back with whole lines that have come since the last call, a piece at a time. Errors as of LogReader::open(); then the
  // next call goes on.
  Result<void> read_new(const std::function<void(std::string_view lines)>& take);
  std::uint64_t bytes() const { return bytes_; }  // up to which lines have been handed over
  // Returns how many of those were in the part that grows, at the last call.
  std::uint64_t newest_bytes() const { return newest_bytes_; }

 private:
  Env* env_;
  RunPaths paths_;
  std::uint64_t bytes_, newest_bytes_ = 0;
};

// All of the log, and how many bytes that is: 0 without a log.
std::uint64_t log_bytes(Env& env, const RunPaths& paths);

}  // namespace holdfast::run
