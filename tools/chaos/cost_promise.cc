#include "tools/chaos/cost_promise.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "runtime/core/units.h"
#include "tools/chaos/chaos_fault.h"

namespace holdfast::chaos {
namespace {

bool is_disk(ChaosFault fault) {
  return fault == ChaosFault::full_disk || fault == ChaosFault::stalled_disk ||
         fault == ChaosFault::slow_storage;
}

LostPart part_of(ChaosFault fault) {
  if (facts_of(fault).ends_job && fault != ChaosFault::job_killed) return LostPart::job;
  if (host_fault_of(fault) != nullptr) return LostPart::host;
  return LostPart::process;
}

CheckedLoss check(const ChaosRun& run, const WorkLoss& loss, std::int64_t after_us) {
  CheckedLoss checked{.loss = loss};
  bool no_disk = false, damaged = false;
  for (const ChaosInjected& injected : run.injected) {
    if (injected.time_us > loss.resumed_us) continue;
    no_disk = no_disk || is_disk(injected.fault);
    if (injected.time_us <= after_us) continue;
    damaged = damaged || injected.fault == ChaosFault::damaged_checkpoint ||
              injected.fault == ChaosFault::load_error;  // an older one may count
    checked.part = std::max(checked.part, part_of(injected.fault));
  }
  if (!loss.reported.has_value()) {
    checked.no_promise = NoPromise::said_nothing;
    return checked;
  }
  const std::array<std::optional<double>, 3> reported = {loss.reported->process_ms, loss.reported->host_ms,
                                                         loss.reported->job_ms};
  const std::optional<double> promised_ms = reported[static_cast<std::size_t>(checked.part)];
  checked.promised_ms = promised_ms.value_or(0.0);
  if (damaged) checked.no_promise = NoPromise::damaged;
  if (no_disk) checked.no_promise = NoPromise::no_disk;
  if (!promised_ms.has_value()) checked.no_promise = NoPromise::all_work;
  return checked;
}

}  // namespace

std::string_view name_of(LostPart part) {
  constexpr std::array<std::string_view, 3> names = {"process", "host", "job"};
  return names[static_cast<std::size_t>(part)];
}

std::string_view text_of(NoPromise reason) {
  constexpr std::array<std::string_view, 4> texts = {
      "the start had not said yet what a failure costs", "all of the work was to be lost",
      "the disk had been full or stood still", "the newest checkpoint was damaged"};
  return texts[static_cast<std::size_t>(reason)];
}

std::string to_text(const CheckedLoss& checked) {
  return fmt::format("a lost {} cost {} of work ({} step{} again), and {} were promised",
                     name_of(checked.part), format_seconds(checked.loss.lost_ms() / 1e3), checked.loss.steps,
                     checked.loss.steps == 1 ? "" : "s", format_seconds(checked.promised_ms / 1e3));
}

std::vector<CheckedLoss> check_losses(const ChaosRun& run) {
  std::vector<CheckedLoss> checked;
  std::int64_t after_us = 0;
  for (const WorkLoss& loss : run.losses) {
    checked.push_back(check(run, loss, after_us));
    after_us = loss.resumed_us;
  }
  return checked;
}

void CostTally::add(const ChaosRun& run) {
  const auto share = [](const CheckedLoss& loss) { return loss.loss.lost_ms() / loss.limit_ms(); };
  for (const CheckedLoss& checked : check_losses(run)) {
    ++losses;
    if (checked.no_promise.has_value()) continue;
    ++promised;
    if (checked.held()) ++held;
    if (worst.has_value() && share(*worst) >= share(checked)) continue;
    worst = checked;
    worst_seed = run.plan.seed;
  }
}

std::string to_text(const CostTally& tally) {
  std::string text = fmt::format("the cost promise held in {} of {} death{}", tally.held, tally.promised,
                                 tally.promised == 1 ? "" : "s");
  if (tally.worst.has_value()) {
    text += fmt::format(
        "; worst: {} of {} promised (a lost {}, seed {})", format_seconds(tally.worst->loss.lost_ms() / 1e3),
        format_seconds(tally.worst->promised_ms / 1e3), name_of(tally.worst->part), tally.worst_seed);
  }
  if (const std::int64_t without = tally.losses - tally.promised; without > 0)
    text += fmt::format("; {} more had no promise", without);
  return text;
}

}  // namespace holdfast::chaos
