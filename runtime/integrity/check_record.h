// The record that all ranks gather where a check of hardware has failed, and what follows from what a check has found:
// who leaves, and whether the run goes back. A check attributes what was found to ranks (its attribute(), pure), and
// hands a Finding to follow().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/gather.h"
#include "runtime/integrity/step_access.h"
#include "runtime/run/hardware_record.h"

namespace holdfast::integrity {

// OwnHardware is what a rank says of its hardware, so that all ranks decide by the clock and the record of the rank
// that is the suspect.
struct OwnHardware {
  std::string device = {};
  std::string machine = {};            // machine_identity()
  std::int64_t now_us = 0;             // its wall clock
  std::uint64_t earlier_findings = 0;  // within verdict.findings_window
  std::int64_t since_us = 0;           // time of the first of them

  static void visit_fields(auto& self, auto&& visit) {
    visit("device", self.device);
    visit("machine", self.machine);
    visit("now_us", self.now_us);
    visit("earlier_findings", self.earlier_findings);
    visit("since_us", self.since_us);
  }
};

// RankRecord is what every rank says of itself.
struct RankRecord {
  std::string host = {};
  int rank = 0;                            // global
  int data = 0, pipeline = 0, tensor = 0;  // coordinate
  std::uint64_t verified_step = 0;  // newest step up to which the rank is right, as far as the check says
  OwnHardware hardware = {};

  std::string name() const;  // "rank 1 (host a)"
  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("rank", self.rank);
    visit("data", self.data);
    visit("pipeline", self.pipeline);
    visit("tensor", self.tensor);
    visit("verified_step", self.verified_step);
    visit("hardware", self.hardware);
  }
};

// CheckRecord is that with what the rank has found.
template <typename Found>
struct CheckRecord : RankRecord {
  Found found = {};

  static void visit_fields(auto& self, auto&& visit) {
    RankRecord::visit_fields(self, visit);
    visit("found", self.found);
  }
};
template <typename Found>
using CheckRecords = std::vector<CheckRecord<Found>>;  // by rank of the communicator

RankRecord own_record(const RankContext& rank, std::uint64_t verified_step);

// All ranks call it together. Errors: communication.
template <typename Found>
Result<CheckRecords<Found>> gather_records(const RankContext& rank, std::uint64_t verified_step,
                                           const Found& found) {
  return gather(rank.communicator, rank.waiter, CheckRecord<Found>{own_record(rank, verified_step), found});
}

// Suspect is a rank whose hardware a check has found at fault.
struct Suspect {
  int index = 0;  // rank of the communicator
  RankRecord record = {};
  std::string_view kind = {};  // of finding_kinds; empty: no finding is noted
  bool may_leave = true;
};

// Finding is what a check has found.
struct Finding {
  VerdictKind kind = VerdictKind::corruption;
  VerdictSubject of = VerdictSubject::grad_norm;
  VerdictAction action = VerdictAction::none;  // where nothing follows from hardware
  HardwareState hardware = HardwareState::recovered;
  std::vector<Suspect> suspects = {};  // ascending
  std::uint64_t verified_step = 0;     // newest step whose state counts
  bool may_go_back = true;             // `verified_step` is known where the fault lasts
  // Clauses on what follows: where the attempt counts, where the run ends, and where ranks leave, if it is not the
  // usual one.
  std::string kept = {}, stopped = {}, evicted = {};
  bool notes_last = false;   // how many findings there were is said after what follows
  VerdictEvent report = {};  // its reason is a sentence on what was found; without kind, action and of
};

// Says what follows where the numbers of a device are wrong again.
inline constexpr std::string_view replace_hardware_clause =
    "the update was not made. Replace that hardware, or start again without it";

// Decides what follows, notes the findings on this rank, and completes the report. Every rank comes to the same.
CheckedStep follow(const RankContext& rank, const Attempt& attempt, Finding finding);

}  // namespace holdfast::integrity
