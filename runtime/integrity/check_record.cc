#include "runtime/integrity/check_record.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/os/machine_facts.h"

namespace holdfast::integrity {
namespace {

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

void note_finding(const RankContext& rank, const Suspect& suspect, std::uint64_t step) {
  if (rank.hardware == nullptr || suspect.kind.empty()) return;
  const OwnHardware& hardware = suspect.record.hardware;
  rank.hardware->add({.host = suspect.record.host, .machine = hardware.machine, .device = hardware.device},
                     {.step = step, .time_us = hardware.now_us, .what = std::string(suspect.kind)});
}

// Returns the one rank that the finding is about; null: it is not known, or there are several.
const Suspect* only_suspect(const Finding& finding) {
  return finding.suspects.size() == 1 && finding.suspects[0].may_leave ? finding.suspects.data() : nullptr;
}

// Notes what was found about all suspects, names the only one, and says how many findings about it there were.
void note_findings(const RankContext& rank, const Finding& finding, VerdictEvent& report) {
  for (const Suspect& suspect : finding.suspects) note_finding(rank, suspect, report.step);
  const Suspect* const only = only_suspect(finding);
  if (only == nullptr) return;
  const OwnHardware& hardware = only->record.hardware;
  report.rank = only->record.rank;
  report.host = only->record.host;
  report.device = hardware.device;
  report.earlier_findings = hardware.earlier_findings;
  if (hardware.earlier_findings == 0) return;
  report.reason +=
      fmt::format("; this is {} about {} of host {} since {}",
                  hardware.earlier_findings == 1 ? "the second finding"
                                                 : fmt::format("finding {}", hardware.earlier_findings + 1),
                  hardware.device, only->record.host, time_text(hardware.since_us));
}

std::string consequence_of(const Finding& finding, const CheckedStep& checked, bool goes_back) {
  const bool evicts = checked.action == VerdictAction::evict;
  if (evicts && !finding.evicted.empty()) return finding.evicted;
  std::string text = finding.kept;
  if (evicts) {
    text = checked.leaving_ranks.size() == 1 ? "that rank leaves the run, which goes on without it"
                                             : "they leave the run, which goes on without them";
  } else if (finding.hardware == HardwareState::corrupted) {
    text = "the run goes back";
  } else if (finding.hardware == HardwareState::lasts) {
    text = finding.stopped;
  }
  if (goes_back)
    text += fmt::format("{} step {} or before", checked.action == VerdictAction::rollback ? " to" : ", from",
                        finding.verified_step);
  return text;
}

}  // namespace

std::string RankRecord::name() const {
  return fmt::format("rank {} (host {})", rank, host);
}

RankRecord own_record(const RankContext& rank, std::uint64_t verified_step) {
  return {.host = rank.env.host_name(),
          .rank = rank.communicator.global_rank(rank.communicator.rank()),
          .data = rank.coordinate.data,
          .pipeline = rank.coordinate.pipeline,
          .tensor = rank.coordinate.tensor,
          .verified_step = verified_step,
          .hardware = own_hardware(rank)};
}

CheckedStep follow(const RankContext& rank, const Attempt& attempt, Finding finding) {
  const Suspect* const only = only_suspect(finding);
  std::vector<int> suspects;
  for (const Suspect& each : finding.suspects)
    if (each.may_leave) suspects.push_back(each.index);
  CheckedStep checked{
      .attempt = attempt,
      .action = action_on_hardware(
          finding.action, {.state = finding.hardware,
                           .is_repeated = only != nullptr && only->record.hardware.earlier_findings > 0,
                           .can_leave = rank.can_spare(suspects)})};
  if (checked.action == VerdictAction::evict) {
    checked.leaving_ranks = std::move(suspects);
    finding.kind = VerdictKind::corruption;
  }
  const bool goes_back = finding.hardware == HardwareState::corrupted ||
                         (finding.hardware == HardwareState::lasts && finding.may_go_back &&
                          rank.config.verdict.on_wrong_rank == "rollback");
  if (goes_back) checked.rollback = Rollback{.trusted_step = finding.verified_step};
  VerdictEvent report = std::move(finding.report);
  const bool is_redone = checked.action == VerdictAction::none && report.attempts > 1;
  report.what = name_of(finding.kind);
  report.action = name_of(is_redone ? VerdictAction::redo : checked.action);
  report.of = name_of(finding.of);
  if (!finding.notes_last) note_findings(rank, finding, report);
  report.reason += "; " + consequence_of(finding, checked, goes_back);
  if (finding.notes_last) note_findings(rank, finding, report);
  checked.report = std::move(report);
  return checked;
}

}  // namespace holdfast::integrity
