#include "runtime/integrity/hardware_findings.h"

#include <fmt/core.h>

#include "runtime/os/machine_facts.h"

namespace holdfast::integrity {

OwnHardware own_hardware(const RankContext& rank) {
  OwnHardware mine{.device = rank.hardware_name, .now_us = rank.env.wall_time_us()};
  if (rank.hardware == nullptr) return mine;
  mine.machine = machine_identity(rank.env);
  const RecentFindings recent =
      rank.hardware->recent({.host = rank.env.host_name(), .machine = mine.machine, .device = mine.device},
                            mine.now_us, rank.config.verdict.findings_window_ms);
  mine.earlier_findings = recent.count;
  mine.since_us = recent.since_us;
  return mine;
}

void note_finding(const RankContext& rank, const std::string& host, const OwnHardware& culprit,
                  std::string_view kind, std::uint64_t step) {
  if (rank.hardware == nullptr) return;
  rank.hardware->add({.host = host, .machine = culprit.machine, .device = culprit.device},
                     {.step = step, .time_us = culprit.now_us, .what = std::string(kind)});
}

void note_finding(const RankContext& rank, const OwnHardware& culprit, std::string_view kind,
                  VerdictEvent& report) {
  const std::string host = report.host.value_or("");
  note_finding(rank, host, culprit, kind, report.step);
  report.device = culprit.device;
  report.earlier_findings = culprit.earlier_findings;
  if (culprit.earlier_findings == 0) return;
  report.reason +=
      fmt::format("; this is {} about {} of host {} since {}",
                  culprit.earlier_findings == 1 ? "the second finding"
                                                : fmt::format("finding {}", culprit.earlier_findings + 1),
                  culprit.device, host, time_text(culprit.since_us));
}

}  // namespace holdfast::integrity
