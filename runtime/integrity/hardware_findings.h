// Says what a rank knows of its own hardware when a step is in doubt, and notes on all ranks whose hardware it was
// when they have found out (HardwareRecord).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/rank/rank_context.h"
#include "runtime/run/event.h"
#include "runtime/run/hardware_record.h"

namespace holdfast::integrity {

// OwnHardware is what a rank says of its hardware: a part of what the ranks gather about a step in doubt, so that
// all of them decide by the clock and the record of the rank that is to blame.
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

OwnHardware own_hardware(const RankContext& rank);

// Notes a finding about the hardware of the one rank that is to blame, on every rank alike. `culprit`: what that
// rank has said; `kind`: of finding_kinds. Completes a report that names the rank and its host, and adds to its
// sentence where it is not the first finding.
void note_finding(const RankContext& rank, const OwnHardware& culprit, std::string_view kind,
                  VerdictEvent& report);
// Notes a finding about one of several ranks that are to blame.
void note_finding(const RankContext& rank, const std::string& host, const OwnHardware& culprit,
                  std::string_view kind, std::uint64_t step);

}  // namespace holdfast::integrity
