// RUN/history.json: how often a run has failed and how long it has trained, for the rate by which it
// saves (runtime/hazard/failure_rate.h). The leader replaces it when a start begins, at each recovery and at the end, so that
// neither a start nor a recovery reads the event log, which grows with the run.
//
//   {"failures":3,"rank_us":32480000,"ranks":4,"since_us":1790000000000000,"state":"running"}
//
// Time counts times the ranks that train in it, because it is they that fail: a run that goes on with other ranks knows as much.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "parallel/group/membership.h"
#include "runtime/core/kernel_fault.h"
#include "runtime/core/result.h"
#include "runtime/hazard/failure_rate.h"
#include "runtime/os/env.h"
#include "runtime/run/fault_cause.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

struct FailureRecord {
  std::int64_t failures = 0;  // starts that died or failed, but the last; recoveries from a loss
  std::int64_t rank_us = 0;   // time until `since_us`, times the ranks that trained
  std::int64_t since_us = 0;  // wall clock since when there are `ranks`; 0: there was no start
  std::int64_t ranks = 1;
  bool ended = false;  // the newest start has recorded its end
};

// Returns what the record of a run says, with the time of a start that is under way or has died; none without a record that can
// be read.
// `ranks`: of a record of an older version, which does not say how many there were.
std::optional<DeviceHistory> read_failure_history(Env& env, const RunPaths& paths, std::int64_t ranks);

// Counts of one run, kept by its leader. Threads: one at a time.
class FailureTally {
 public:
  // Begins another start of the run, in which `ranks` train. Reads the record, and the end of the log for the time of a start that
  // died; without a record it counts what the last `tail_bytes` of the log say. Returns what people should
  // know about that, or nothing.
  std::string begin_start(Env& env, const RunPaths& paths, std::int64_t ranks);
  // Continues with the counts of the previous leader, which may have died. From now on `ranks` train.
  void go_on(Env& env, const RunPaths& paths, std::int64_t ranks);
  void count_failure() { ++record_.failures; }
  void end(bool failed, std::int64_t now_us);
  // Returns the function that writes the record, on any thread. Only an estimate depends on it: a start that
  // misses it reads the end of the log.
  std::function<void()> writing(Env& env, const RunPaths& paths) const;
  // Returns the history as one of the ranks that train.
  FailureHistory so_far(std::int64_t now_us) const;

  static constexpr std::uint64_t tail_bytes = std::uint64_t{4} << 20;

 private:
  FailureRecord record_;
};

// RecoveryRecord: facts about a recovery for the log and the console. Holds what is known of one death or several until a step was made without the dead, or of new ranks until
// one was made with them.
struct RecoveryRecord {
  int wanted = 0;               // new ranks; 0: it is about deaths alone
  std::string not_grown = {};   // why none came
  bool goes_back = false;       // a verdict takes the run back; nobody was lost
  std::int64_t noticed_ns = 0;  // Env::monotonic_ns() of this rank
  std::int64_t noticed_us = 0;  // the same by its wall clock
  std::string noticed = {};     // how: its sentence
  FaultCause cause = FaultCause::rank_died;
  bool reported = false;          // the sentence says that another rank gave up, and not why
  std::string verdict = {};       // of the watchdog, which ended a rank that hung: its sentence; else empty
  KernelFault kernel = {};        // in which a rank was lost; one without a name: in none
  MembershipView before = {};     // of the ranks that trained last
  std::uint64_t step_before = 0;  // newest step that the run had reached
  int faults = 0;                 // recoveries that were begun
  // Durations by part; includes those of recoveries that ended before a further fault.
  std::int64_t shrink_ns = 0;  // to regroup
  std::int64_t plan_ns = 0;    // coordinates, the run directory, and where to go on from
  std::int64_t load_ns = 0;    // memory, kernels and state
  // Result of the recovery.
  int active_before = 0, active_after = 0, spares_after = 0, ranks_after = 0;
  std::map<std::string, int> hosts_after = {};  // ranks of each
  std::string lost = {};                        // which ranks
  std::uint64_t resumed_step = 0;
  std::string resumed_from = {};                                            // "ram", "disk" or "start"
  std::map<std::string, std::string> armed_after = {}, unarmed_after = {};  // as in StartEvent
};

// Returns "lost rank 2 (host a) at step 9: 2 of 3 ranks go on, from step 8 in RAM", or "2 new ranks at step
// 9: 4 of 4 ...".
std::string sentence_of(const RecoveryRecord& record);

}  // namespace holdfast::run
