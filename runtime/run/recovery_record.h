// RecoveryRecord: facts about a recovery for the log and the console.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "parallel/group/membership.h"

namespace holdfast::run {

// Holds what is known of one death or several until a step was made without the dead, or of new ranks until
// one was made with them.
struct RecoveryRecord {
  int wanted = 0;                 // new ranks; 0: it is about deaths alone
  std::string not_grown = {};     // why none came
  bool goes_back = false;         // a verdict takes the run back; nobody was lost
  std::int64_t noticed_ns = 0;    // Env::monotonic_ns() of this rank
  std::int64_t noticed_us = 0;    // the same by its wall clock
  std::string noticed = {};       // how: its sentence
  bool reported = false;          // the sentence says that another rank gave up, and not why
  std::string verdict = {};       // of the watchdog, which ended a rank that hung: its sentence; else empty
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
  std::string resumed_from = {};  // "ram", "disk" or "start"
};

// Returns "lost rank 2 (host a) at step 9: 2 of 3 ranks go on, from step 8 in RAM", or "2 new ranks at step
// 9: 4 of 4 ...".
std::string sentence_of(const RecoveryRecord& record);

}  // namespace holdfast::run
