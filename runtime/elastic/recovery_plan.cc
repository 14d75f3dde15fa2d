#include "runtime/elastic/recovery_plan.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

namespace holdfast::elastic {
namespace {

// Counts in a merged inventory that its step is begun again, unless a rank was lost.
Result<void> limit_retries(RecoveryInventory& inventory, const RecoveryLimits& limits) {
  if (inventory.lost_some) return {};
  inventory.redone = inventory.step == inventory.redone_step ? inventory.redone + 1 : 1;
  inventory.redone_step = inventory.step;
  if (inventory.redone <= limits.retries_max) return {};
  return fail(ExitCode::communication,
              "step {} was begun again {} times with nobody lost, and failed each time: {}",
              inventory.step + 1, limits.retries_max, inventory.noticed);
}

// Returns the coordinates with which the ranks that are left go on.
Result<RankAssignment> assign_those_left(std::span<const RecoveryInventory> inventories,
                                         const AssignmentRequest& request, bool lost_some,
                                         const RecoveryLimits& limits) {
  if (lost_some && !limits.without_lost_ranks) {
    return fail(ExitCode::communication,
                "ranks were lost, and elastic.in_place = false: the start ends here. Start the run again; it "
                "goes on from the newest step that is whole");
  }
  std::vector<std::string> hosts;
  for (const RecoveryInventory& one : inventories) hosts.push_back(one.host);
  return assign_ranks(request, hosts);
}

// Counts in a merged inventory a fault that NCCL may have been the cause of: it had connected all ranks, and all live.
void count_nccl_fault(RecoveryInventory& inventory) {
  constexpr std::uint64_t soon_steps = 100;
  if (!std::exchange(inventory.used_nccl, false) || inventory.lost_some) return;
  const bool is_soon = inventory.step <= inventory.nccl_fault_step + soon_steps;
  inventory.nccl_faults = is_soon ? inventory.nccl_faults + 1 : 1;
  inventory.nccl_fault_step = inventory.step;
}

}  // namespace

bool gives_up_nccl(const RecoveryInventory& known) {
  return known.nccl_faults >= nccl_faults_max;
}

RecoveryInventory merge_inventories(std::span<const RecoveryInventory> inventories) {
  RecoveryInventory all{.joined = true};
  bool some_did_not = false, some_did = false;
  for (const RecoveryInventory& one : inventories) {
    all.launched_ranks = std::max(all.launched_ranks, one.launched_ranks);
    all.joined = all.joined && one.joined;
    some_did_not = some_did_not || one.log_opened == false;
    some_did = some_did || one.log_opened == true;
    all.step = std::max(all.step, one.step);
    all.kept_step = std::max(all.kept_step, one.kept_step);
    all.gemm_peak = std::max(all.gemm_peak, one.gemm_peak);
    if (all.shm_run_id.empty()) all.shm_run_id = one.shm_run_id;
    if (all.verdict.empty()) all.verdict = one.verdict;
    all.cause = std::max(all.cause, one.cause);
    all.lost_some = all.lost_some || one.lost_some;
    all.lost_starter = all.lost_starter || one.lost_starter;
    if (std::pair(one.redone_step, one.redone) > std::pair(all.redone_step, all.redone)) {
      all.redone_step = one.redone_step;
      all.redone = one.redone;
    }
    all.used_nccl = all.used_nccl || one.used_nccl;
    all.nccl_faults = std::max(all.nccl_faults, one.nccl_faults);
    all.nccl_fault_step = std::max(all.nccl_fault_step, one.nccl_fault_step);
    if (one.number >= 0) all.numbers.push_back(one.number);
    if (all.places.empty()) all.places = one.places;
    merge_joiners(all.joiners, one.joiners);
    if (!all.kernel_fault.is_valid()) all.kernel_fault = one.kernel_fault;
    add_faults(all.kernel_faults, one.kernel_faults);
    const bool nearer = std::pair(one.reported, one.noticed_us) < std::pair(all.reported, all.noticed_us);
    if (!one.noticed.empty() && (all.noticed.empty() || nearer)) {
      all.noticed_us = one.noticed_us;
      all.reported = one.reported;
      all.noticed = one.noticed;
    }
  }
  // Spares alone know nothing of the log, but they have seen other ranks begin; a joiner has seen nothing.
  if (all.joined || some_did) all.log_opened = !some_did_not;
  return all;
}

RecoveryPlan plan_recovery(std::span<const RecoveryInventory> inventories, const AssignmentRequest& request,
                           const RecoveryLimits& limits) {
  RecoveryPlan plan{.known = merge_inventories(inventories)};
  count_nccl_fault(plan.known);
  if (const Result<void> counted = limit_retries(plan.known, limits); !counted.ok()) {
    plan.error = counted.error();
    return plan;
  }
  if (plan.known.log_opened != true) {
    plan.action = RecoveryAction::start_again;
    return plan;
  }
  if (!plan.known.joined) {
    plan.action = RecoveryAction::admit_joiners;
    return plan;
  }
  Result<RankAssignment> assignment = assign_those_left(inventories, request, plan.known.lost_some, limits);
  if (assignment.ok()) {
    plan.action = RecoveryAction::use_assignment;
    plan.assignment = std::move(assignment).value();
  } else {
    plan.action = RecoveryAction::ends_start;
    plan.error = assignment.error();
  }
  return plan;
}

std::optional<SnapshotStep> plan_snapshot(std::span<const std::vector<SnapshotIdentity>> snapshots,
                                          const StartPoint& start, std::uint64_t steps) {
  std::vector<std::vector<SnapshotIdentity>> offers(snapshots.begin(), snapshots.end());
  for (std::vector<SnapshotIdentity>& offer : offers) {
    std::erase_if(offer, [&](const SnapshotIdentity& of) {
      return of.step >= steps || start.lineage.discards({.generation = of.generation, .step = of.step});
    });
  }
  const SnapshotStep disk = {.writer = 0, .generation = start.generation, .step = start.step};
  return newest_whole_step(offers, disk, start.passed_over);
}

Result<void> check_kept_state(const RecoveryInventory& known, const StartPoint& start,
                              std::span<const std::string> lost_hosts) {
  const std::uint64_t found = start.snapshot.has_value() ? start.snapshot->step : start.step;
  if (lost_hosts.empty() || found >= known.kept_step) return {};
  return fail(
      ExitCode::communication,
      "the ranks that are left have the state of step {} at most, and that of step {} may still be in the "
      "memory of {}, where no rank is left; the run ends here, start it again: it goes on from what its "
      "hosts have",
      found, known.kept_step, fmt::join(lost_hosts, ", "));
}

StateSource source_of(const StartPoint& start) {
  if (start.snapshot.has_value()) return StateSource::ram;
  if (!start.unusable.empty()) return StateSource::nothing;
  return start.checkpoint.empty() ? StateSource::start : StateSource::disk;
}

const char* name_of(StateSource source) {
  return source == StateSource::ram ? "ram" : source == StateSource::start ? "start" : "disk";
}

}  // namespace holdfast::elastic
