#include "tools/chaos/chaos_summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/core/units.h"
#include "runtime/run/numbers_log.h"

namespace holdfast::chaos {
namespace {

// Returns whether the launcher gave up the run between the fault and its repair.
bool gave_up_between(const ChaosRun& run, std::int64_t time_us, std::int64_t resumed_us) {
  return std::ranges::any_of(run.launches, [&](const ChaosLaunch& launch) {
    const bool gave_up = !launch.killed && launch.exit_code != static_cast<int>(ExitCode::done);
    return gave_up && launch.ended_us > time_us && (resumed_us == 0 || launch.ended_us < resumed_us);
  });
}

// Training goes on beside it; what was told of it is that a save failed.
CheckedFault check_full_disk(const ChaosRun& run, const ChaosInjected& injected) {
  CheckedFault checked{.fault = injected.fault};
  for (const FaultEntry& entry : run.ledger.faults) {
    if (entry.level != FaultLevel::none || entry.time_us < injected.time_us) continue;
    checked.notice_ms = static_cast<double>(entry.time_us - injected.time_us) / 1e3;
    break;
  }
  return checked;
}

// Wrong numbers are mended from the verdict on, if it takes a rank away or goes back to an older state.
CheckedFault check_number(const ChaosRun& run, const ChaosInjected& injected, const CheckedNumber& number) {
  CheckedFault checked{.fault = injected.fault};
  const bool ends_attempts = number.verdict.ends_with(name_of(VerdictAction::evict)) ||
                             number.verdict.ends_with(name_of(VerdictAction::rollback)) ||
                             number.verdict.ends_with(name_of(VerdictAction::stop));
  const FaultEntry* entry = ends_attempts ? entry_of(run.ledger, number.verdict_us) : nullptr;
  if (entry != nullptr) {
    if (entry->level == FaultLevel::in_place) checked.outcome = ChaosOutcome::in_place;
    if (entry->level == FaultLevel::restart) checked.outcome = ChaosOutcome::restarted;
    if (gave_up_between(run, number.verdict_us, entry->resumed_us))
      checked.outcome = ChaosOutcome::ended_truthfully;
  }
  if (!run.wrong.empty()) checked.outcome = ChaosOutcome::wrong;
  return checked;
}

CheckedFault check_one(const ChaosRun& run, const ChaosInjected& injected, const NamedHang& hang) {
  CheckedFault checked{.fault = injected.fault, .in_recovery = injected.during_recovery, .named = hang.named};
  const bool beside = injected.fault == ChaosFault::slow_rank || injected.fault == ChaosFault::full_disk ||
                      injected.fault == ChaosFault::write_error ||
                      injected.fault == ChaosFault::slow_storage || is_stall(injected.fault);
  if (injected.fault == ChaosFault::full_disk) checked = check_full_disk(run, injected);
  if (beside && gave_up_between(run, injected.time_us, 0)) checked.outcome = ChaosOutcome::ended_truthfully;
  const FaultEntry* entry = beside ? nullptr : entry_of(run.ledger, injected.time_us);
  if (entry != nullptr) {
    // A killed launcher cannot log the time of its death: that entry begins with the last message before it.
    const bool reported = entry->level != FaultLevel::launch;
    checked.in_recovery = checked.in_recovery || (reported && entry->time_us < injected.time_us &&
                                                  entry->resumed_us > injected.time_us);
    if (reported && entry->time_us + same_moment_us >= injected.time_us)
      checked.notice_ms =
          static_cast<double>(std::max<std::int64_t>(entry->time_us - injected.time_us, 0)) / 1e3;
    if (entry->resumed_us > 0)
      checked.mend_ms = static_cast<double>(entry->resumed_us - injected.time_us) / 1e3;
    switch (entry->level) {
      case FaultLevel::in_place:
        checked.outcome = ChaosOutcome::in_place;
        break;
      case FaultLevel::restart:
        checked.outcome = ChaosOutcome::restarted;
        break;
      case FaultLevel::launch:
        checked.outcome = ChaosOutcome::launched_again;
        break;
      default:
        break;
    }
    if (gave_up_between(run, injected.time_us, entry->resumed_us))
      checked.outcome = ChaosOutcome::ended_truthfully;
  }
  if (hang.verdict_us > 0)
    checked.notice_ms =
        static_cast<double>(std::max<std::int64_t>(hang.verdict_us - injected.time_us, 0)) / 1e3;
  if (facts_of(injected.fault).ends_job) checked.outcome = ChaosOutcome::launched_again;
  if (!run.wrong.empty()) checked.outcome = ChaosOutcome::wrong;
  return checked;
}

bool is_kill(ChaosFault fault) {
  const ChaosFaultFacts& facts = facts_of(fault);
  const bool other_signal = fault == ChaosFault::crash || is_hang(fault);
  return (facts.kills_rank && !other_signal) || facts.ends_job || fault == ChaosFault::mpirun_killed;
}

void add_time(ChaosSummary& summary, std::string_view name, double value_ms) {
  auto found = std::ranges::find(summary.times, name, &ChaosDistribution::name);
  if (found == summary.times.end()) {
    summary.times.push_back({.name = std::string(name), .values_ms = {}});
    found = std::prev(summary.times.end());
  }
  found->values_ms.push_back(value_ms);
}

void add_fault(ChaosSummary& summary, const CheckedFault& checked) {
  ChaosTally& tally = summary.tallies[static_cast<std::size_t>(checked.fault)];
  ++tally.injected;
  ++tally.outcomes[static_cast<std::size_t>(checked.outcome)];
  ++summary.faults;
  if (is_kill(checked.fault)) ++summary.kills;
  if (checked.in_recovery) {
    ++tally.in_recovery;
    ++summary.in_recovery;
  }
  const bool hangs = is_hang(checked.fault);
  summary.hangs += hangs ? 1 : 0;
  if (checked.named.has_value()) ++summary.named[static_cast<std::size_t>(*checked.named)];
  const bool mended =
      checked.outcome == ChaosOutcome::in_place || (hangs && checked.outcome == ChaosOutcome::restarted);
  if (checked.notice_ms >= 0.0 && checked.fault == ChaosFault::full_disk)
    add_time(summary, "full disk told", checked.notice_ms);
  if (checked.notice_ms >= 0.0 && mended)
    add_time(summary, hangs ? "hang noticed" : "death noticed", checked.notice_ms);
  if (checked.mend_ms < 0.0 || checked.in_recovery) return;
  if (checked.outcome == ChaosOutcome::in_place)
    add_time(summary, hangs ? "hang to next step, in place" : "death to next step, in place",
             checked.mend_ms);
  if (checked.outcome == ChaosOutcome::restarted)
    add_time(summary, "fault to next step, restart", checked.mend_ms);
  if (checked.outcome == ChaosOutcome::launched_again)
    add_time(summary, "fault to next step, launch", checked.mend_ms);
}

std::string sentence_of_launches(const ChaosSummary& summary) {
  return fmt::format(
      "{} launch{} of {} run{}: {} after the launcher was killed, {} after a run that ended truthfully",
      summary.launches, summary.launches == 1 ? "" : "es", summary.runs, summary.runs == 1 ? "" : "s",
      summary.launched_again, summary.ended_truthfully);
}

std::string sentence_of_hangs(const ChaosSummary& summary) {
  const std::int64_t right = summary.count_of(NamedRank::right);
  std::string text =
      fmt::format("of {} hang{}, the verdict named the right rank {} time{}, another one {}, none {}",
                  summary.hangs, summary.hangs == 1 ? "" : "s", right, right == 1 ? "" : "s",
                  summary.count_of(NamedRank::other), summary.count_of(NamedRank::nobody));
  if (const std::int64_t over = summary.hangs - summary.checked_hangs(); over > 0)
    text += fmt::format("; {} {} over before anybody had to notice", over, over == 1 ? "was" : "were");
  if (summary.baseless_verdicts > 0)
    text += fmt::format("; and {} verdict{} named a rank while none hung", summary.baseless_verdicts,
                        summary.baseless_verdicts == 1 ? "" : "s");
  return text;
}

// Keeps the largest growth of each program's processes, of descriptors first.
void add_growths(ChaosSummary& summary, const ChaosRun& run) {
  const auto size = [](const ResourceGrowth& growth) {
    return std::pair(growth.descriptors(), growth.resident_bytes());
  };
  for (const ResourceGrowth& growth : run.growths) {
    const auto known = std::ranges::find(summary.growths, growth.program, &ResourceGrowth::program);
    if (known == summary.growths.end()) {
      summary.growths.push_back(growth);
    } else if (size(growth) > size(*known)) {
      *known = growth;
    }
  }
}

std::string sentence_of_times(const ChaosSummary& summary) {
  const std::int64_t wall_us =
      std::accumulate(summary.times_us.begin(), summary.times_us.end(), std::int64_t{0});
  std::string text = fmt::format("goodput {:.2f} % of {}", 100.0 * goodput_of(summary.times_us),
                                 format_duration(wall_us / 1'000'000 * 1'000));
  const char* before = ": ";
  for (std::size_t i = 0; i < span_uses; ++i) {
    if (summary.times_us[i] == 0) continue;
    text += fmt::format("{}{} {:.1f} s", std::exchange(before, ", "), name_of(static_cast<SpanUse>(i)),
                        static_cast<double>(summary.times_us[i]) / 1e6);
  }
  return text;
}

std::string sentence_of_growth(const ResourceGrowth& growth) {
  return fmt::format("{} (process {}, {} s): {} descriptors at first, {} at last; {} and {} of memory",
                     growth.program, growth.process, growth.seconds, growth.first.descriptors,
                     growth.last.descriptors, format_bytes(growth.first.resident_bytes),
                     format_bytes(growth.last.resident_bytes));
}

void add_parts(ChaosSummary& summary, const FaultEntry& entry) {
  if (entry.level != FaultLevel::in_place || entry.pause_s() <= 0.0) return;
  add_time(summary, "of it: coming together", entry.shrink_ms);
  add_time(summary, "of it: planning", entry.plan_ms);
  add_time(summary, "of it: memory and state", entry.load_ms);
  add_time(summary, "of it: first step", entry.replay_ms);
}

}  // namespace

std::string_view name_of(ChaosOutcome outcome) {
  constexpr std::array<std::string_view, chaos_outcomes> names = {
      "in place", "restarted", "launched again", "nothing to mend", "ended truthfully", "wrong"};
  return names[static_cast<std::size_t>(outcome)];
}

std::vector<CheckedFault> check(const ChaosRun& run) {
  std::vector<CheckedFault> checked;
  const Suspects suspects = find_suspects(run);
  const NumberCheck numbers = check_numbers(run);
  for (std::size_t i = 0; i < run.injected.size(); ++i) {
    const ChaosInjected& injected = run.injected[i];
    checked.push_back(numbers.each[i].has_value() ? check_number(run, injected, *numbers.each[i])
                                                  : check_one(run, injected, suspects.each[i]));
  }
  return checked;
}

// Nearest rank: a value that was measured.
double ChaosDistribution::percentile(double share) const {
  if (values_ms.empty()) return 0.0;
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values_ms.size())));
  return values_ms[std::clamp<std::size_t>(rank, 1, values_ms.size()) - 1];
}

ChaosSummary summarize(std::span<const ChaosRun> runs) {
  ChaosSummary summary;
  for (const ChaosRun& run : runs) {
    ++summary.runs;
    summary.right += run.wrong.empty() && run.excuse.empty() ? 1 : 0;
    summary.excused += run.wrong.empty() && !run.excuse.empty() ? 1 : 0;
    summary.numbers.add(run);
    const std::int64_t launches = std::ssize(run.launches);
    summary.launches += launches;
    summary.ended_truthfully += run.ended_truthfully;
    if (launches > 0) summary.launched_again += launches - 1 - run.ended_truthfully;
    summary.lost_steps += run.ledger.lost_steps;
    summary.costs.add(run);
    for (std::size_t i = 0; i < span_uses; ++i) summary.times_us[i] += run.ledger.times_us[i];
    add_growths(summary, run);
    for (const CheckedFault& checked : check(run)) add_fault(summary, checked);
    summary.baseless_verdicts += find_suspects(run).baseless_verdicts;
    for (const FaultEntry& entry : run.ledger.faults) add_parts(summary, entry);
  }
  for (ChaosDistribution& times : summary.times) std::ranges::sort(times.values_ms);
  std::ranges::sort(summary.times, {}, &ChaosDistribution::name);
  return summary;
}

std::string to_text(const ChaosSummary& summary) {
  std::string text = fmt::format("{:<20}{:>9}{:>12}", "fault", "injected", "in recovery");
  for (std::size_t i = 0; i < chaos_outcomes; ++i)
    text += fmt::format("{:>18}", name_of(static_cast<ChaosOutcome>(i)));
  for (std::size_t i = 0; i < chaos_fault_kinds; ++i) {
    const ChaosTally& tally = summary.tallies[i];
    if (tally.injected == 0) continue;
    text += fmt::format("\n{:<20}{:>9}{:>12}", facts_of(static_cast<ChaosFault>(i)).name, tally.injected,
                        tally.in_recovery);
    for (const std::int64_t count : tally.outcomes) text += fmt::format("{:>18}", count);
  }
  if (!summary.times.empty())
    text += fmt::format("\n\n{:<32}{:>8}{:>10}{:>10}{:>10}{:>10}", "milliseconds", "count", "median", "p90",
                        "p99", "max");
  for (const ChaosDistribution& times : summary.times) {
    text += fmt::format("\n{:<32}{:>8}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}", times.name,
                        times.values_ms.size(), times.percentile(0.5), times.percentile(0.9),
                        times.percentile(0.99), times.percentile(1.0));
  }
  if (!summary.numbers.kinds.empty() || summary.numbers.baseless > 0)
    text += "\n\n" + to_text(summary.numbers);
  text += "\n\n" + sentence_of_launches(summary);
  text += "\n\n" + sentence_of_times(summary);
  for (const ResourceGrowth& growth : summary.growths) text += "\n" + sentence_of_growth(growth);
  if (summary.hangs > 0) text += "\n\n" + sentence_of_hangs(summary);
  if (summary.costs.losses > 0) text += "\n\n" + to_text(summary.costs);
  return text + "\n";
}

}  // namespace holdfast::chaos
