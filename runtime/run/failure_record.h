// RUN/history.json: how often a run has failed and how long it has trained, for the interval between saves
// (save_interval.h). The leader replaces it when a start begins, at each recovery and at the end, so that
// neither a start nor a recovery reads the event log, which grows with the run.
//
//   {"failures":3,"running_us":8120000,"started_us":1790000000000000,"state":"running"}
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/save_interval.h"

namespace holdfast::run {

struct FailureRecord {
  std::int64_t failures = 0;    // starts that died or failed, but the last; recoveries from a loss
  std::int64_t running_us = 0;  // of the starts that have ended
  std::int64_t started_us = 0;  // wall clock at the first event of the newest start
  bool ended = false;           // the newest start has recorded its end
};

// Counts of one run, kept by its leader. Threads: one at a time.
class FailureTally {
 public:
  // Begins another start of the run. Reads the record, and the end of the log for the time of a start that
  // died; without a record it counts what the last `tail_bytes` of the log say. Returns what people should
  // know about that, or nothing.
  std::string begin_start(Env& env, const RunPaths& paths);
  // Continues with the counts of the previous leader, which may have died.
  void take_over(Env& env, const RunPaths& paths);
  void count_failure() { ++record_.failures; }
  void end(bool failed, std::int64_t now_us);
  // Returns the function that writes the record, on any thread. Only an estimate depends on it: a start that
  // misses it reads the end of the log.
  std::function<void()> writing(Env& env, const RunPaths& paths) const;
  FailureHistory so_far(std::int64_t now_us) const;

  static constexpr std::uint64_t tail_bytes = std::uint64_t{4} << 20;

 private:
  FailureRecord record_;
};

}  // namespace holdfast::run
