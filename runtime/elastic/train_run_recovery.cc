#include "runtime/elastic/train_run_internal.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "parallel/comm/gather.h"
#include "runtime/elastic/live_state.h"
#include "runtime/os/console.h"
#include "runtime/rank/leaving.h"
#include "runtime/rank/watch.h"
#include "runtime/run/launch_record.h"

namespace holdfast::elastic {

bool TrainRun::others_can_go_on() const {
  return launched_.membership != nullptr && recovery_.inventory.log_opened == true &&
         group_.world().communicator.size() > 1;
}

FaultFacts TrainRun::fault_facts(const Error& fault) const {
  FaultFacts facts = {.has_membership = launched_.membership != nullptr,
                      .group_lost = group_.world().communicator.abandoned(),
                      .recovery_failed = recovery_.failed,
                      .others_can_go_on = others_can_go_on(),
                      .evicted = steps_.is_evicted,
                      .device_lost = group_.leaving().has_value(),
                      .system_refused = recovery_.system_refused,
                      .unfit = fault.reach == Reach::host && group_.world().communicator.size() > 1,
                      .joins = recovery_.joins,
                      .has_device = setup_.device != nullptr};
  const bool asks_device = facts.has_membership && facts.group_lost && !facts.recovery_failed;
  facts.device_failed = asks_device && facts.has_device && !setup_.device->status().ok();
  return facts;
}

// Tells the launcher that this rank, and so its host, is unfit.
void TrainRun::report_if_unfit(const Error& error) const {
  if (error.reach != Reach::host) return;
  const Communicator& ranks = launched_.communicator;
  report_unfit_to_launcher(launched_.env, ranks.global_rank(ranks.rank()), name_of(setup_.step), error);
}

// Ends this process by SIGKILL, and does not return. The others can go on without this rank, so it ends like
// a rank that died: an exit code other than 0 would end them, too.
void TrainRun::leave_run(const Error& error) {
  journal_.flush();
  report_if_unfit(error);
  if (group_.leaving().has_value()) {
    LeavingRank leaving = *group_.leaving();
    leaving.step = step();
    end_without_device(leaving, error);
  } else if (group_.is_joiner() && setup_.device == nullptr) {
    print_message("new ranks cannot take part: {}", error.message);
  } else {
    print_message("rank {} leaves the run, which goes on without it: {}", launched_.communicator.rank(),
                  error.message);
  }
  std::fflush(nullptr);
  launched_.env.kill_self();
}

// Ends this process by SIGKILL where this rank has given up the group alone, before it records that the run has ended:
// the others may go on without it. Returns on the last of those that give up, which records it for all of them.
void TrainRun::leave_if_awaited(const RunEnd& end) {
  const bool all_agree =
      !group_.world().communicator.abandoned() || end.code == ExitCode::done || end.code == ExitCode::saved;
  if (launched_.membership == nullptr || all_agree) return;
  journal_.flush();
  die_if_awaited(launched_.env, *launched_.membership, launched_.watch != nullptr, end.code, end.message);
  if (!launched_.membership->cut_off()) claim_for_the_dead();
}

// Begins the record of a recovery. `noticed`: what this rank has noticed.
void TrainRun::begin_record(const std::string& noticed, int active_before) {
  const std::int64_t ended_ns = std::exchange(steps_.ended_ns, 0);
  journal_.begin_recovery(noticed, ended_ns == 0 ? launched_.env.monotonic_ns() : ended_ns, active_before);
}

// Notes the fault, and the step of this rank, before anything is destroyed.
void TrainRun::note_fault(const Error& fault) {
  recovery_.step = step();
  // The last recovery is over if a step was made since; a spare assumes that.
  const bool was_spare = group_.epoch() != nullptr && !group_.epoch()->is_active();
  if (was_spare) recovery_.inventory.kept_step = 0;  // of an epoch before this one
  if (was_spare || (worker_ != nullptr && journal_.recovery().has_value() &&
                    recovery_.step > journal_.recovery()->resumed_step))
    journal_.recovery().reset();
  int active_before =
      group_.epoch() == nullptr ? recovery_.inventory.launched_ranks : group_.assignment().shape.active();
  // The new ranks of a growth that failed are among the ranks before the fault.
  if (journal_.recovery().has_value() && journal_.recovery()->wanted > 0) {
    if (group_.epoch() == nullptr) active_before = journal_.recovery()->active_before;
    journal_.recovery().reset();
  }
  if (!journal_.recovery().has_value()) {
    begin_record(fault.message, active_before);
    journal_.recovery()->reported = launched_.membership->reported_by_peer();
  }
  ++journal_.recovery()->faults;
  recovery_.disturbed_ns = launched_.env.monotonic_ns();
  steps_.ended_ns = 0;
}

// Seals the live state. A rank that cannot do so leaves its part out, and thus that whole step.
void TrainRun::keep_live_state(const MembershipView& of_epoch) {
  const std::optional<int> slot = std::exchange(steps_.saves.unused_slot, std::nullopt);
  if (!slot.has_value() || worker_ == nullptr) return;
  if (!no_coordinate_is_lost(group_.assignment(), of_epoch, launched_.membership->view())) return;
  enter_recovery(launched_.watch, recovery_.step, setup_.config);
  const Result<void> sealed = seal_live_state(*worker_, setup_.start.writer, *slot);
  if (!sealed.ok()) print_message("the step is not redone from the state in use: {}", sealed.error().message);
}

// Waits for the saves that were given up. The others know by now which ranks are left, so they wait for this
// rank, which waits for storage.
void TrainRun::wait_for_given_up_saves() {
  if (steps_.saves.saver == nullptr) return;
  {
    const StorageWait storage(launched_.watch, "a save that is given up");
    steps_.saves.saver.reset();
  }
  enter_recovery(launched_.watch, recovery_.step, setup_.config);
}

void TrainRun::drop_epoch() {
  drop_copies();
  worker_.reset();
  journal_.close();
  group_.end_epoch();
}

// Rebuilds the group with the ranks that are left, and drops the objects of the epoch.
Result<void> TrainRun::rebuild_group() {
  HF_FAILING_FAULT_POINT(launched_.faults, rebuild_point);
  const std::int64_t begin_ns = launched_.env.monotonic_ns();
  const MembershipView of_epoch = launched_.membership->view();  // journal_.recovery()->before may be older
  const Result<void> group_rebuilt =
      launched_.membership->recover(setup_.config.elastic.recovery_timeout_ms, journal_.recovery()->noticed);
  wait_for_given_up_saves();
  if (group_rebuilt.ok()) keep_live_state(of_epoch);
  const std::vector<Member> lost = members_lost(of_epoch, launched_.membership->view());
  recovery_.inventory.lost_some = !lost.empty();
  note_lost_joiners(lost);
  const bool lost_rank_0 =
      !lost.empty() && lost.front().launched_rank == of_epoch.members.front().launched_rank;
  // A rank 0 that was lost earlier than that has died of something else.
  const std::int64_t starts_ns = std::exchange(steps_.starts_ranks_ns, 0);
  if (starts_ns != 0 && lost_rank_0 && begin_ns - starts_ns >= rebuild_deadline_ms(setup_.config) * 1'000'000)
    recovery_.inventory.lost_starter = true;
  drop_epoch();
  group_.connect();
  journal_.recovery()->shrink_ns += launched_.env.monotonic_ns() - begin_ns;
  return group_rebuilt;
}

// Claims the run directory because the run ends, and the rank that would have recorded the end may be gone.
// If the other side may go on (lost quorum), it has the run.
void TrainRun::record_for_the_dead() {
  Communicator& left = group_.world().communicator;
  if (!left.abandoned() && left.rank() == 0) claim_for_the_dead();
}

void TrainRun::claim_for_the_dead() {
  if (recovery_.inventory.joined && !launched_.membership->lost_quorum()) journal_.claim_for_the_dead();
}

Result<std::vector<RecoveryInventory>> TrainRun::exchange_inventories() {
  recovery_.inventory.host = launched_.env.host_id();
  recovery_.inventory.step = recovery_.step;
  recovery_.inventory.verdict = launched_.watch == nullptr ? "" : launched_.watch->take_hang();
  recovery_.inventory.noticed = journal_.recovery()->noticed;
  recovery_.inventory.noticed_us = journal_.recovery()->noticed_us;
  recovery_.inventory.reported = journal_.recovery()->reported;
  recovery_.inventory.number =
      group_.is_joiner() && setup_.device == nullptr ? -1 : launched_.place.rank_on_host;
  // The wait is longer than a rebuild of the group may take, because another rank may wait for its given-up
  // saves.
  HF_TRY(std::vector<RecoveryInventory> inventories,
         gather(group_.world().communicator, group_.waiter().with_timeout(setup_.config.parallel.timeout_ms),
                recovery_.inventory));
  enter_recovery(launched_.watch, recovery_.step, setup_.config);  // the time of other ranks does not count
  return inventories;
}

// Adopts the merged inventory, which holds for all ranks.
void TrainRun::adopt_inventory(const RecoveryInventory& known) {
  recovery_.inventory = known;
  journal_.recovery()->step_before = std::max(journal_.recovery()->step_before, recovery_.inventory.step);
  const MembershipView now = group_.view();
  journal_.recovery()->ranks_after = group_.world().communicator.size();
  journal_.recovery()->hosts_after = ranks_by_host(now);
  const std::vector<Member> lost = members_lost(journal_.recovery()->before, now);
  journal_.recovery()->lost = lost.empty() ? "" : name_members(lost);
  if (!recovery_.inventory.verdict.empty()) journal_.recovery()->verdict = recovery_.inventory.verdict;
  if (recovery_.inventory.lost_starter && !std::exchange(recovery_.reported_lost_starter, true)) {
    journal_.recovery()->verdict +=
        (journal_.recovery()->verdict.empty() ? "" : "; ") +
        std::string(
            "a rank was lost while it started new ones, so no more are started before the next start");
  }
  journal_.recovery()->noticed = recovery_.inventory.noticed;
  journal_.recovery()->reported = recovery_.inventory.reported;
}

// Returns the hosts of which no rank is left, where a launcher can start the run again on them.
std::vector<std::string> TrainRun::lost_hosts() {
  std::vector<std::string> lost;
  if (launched_start(launched_.env).empty()) return lost;
  const std::map<std::string, int> now = ranks_by_host(group_.view());
  for (const auto& [host, ranks] : ranks_by_host(journal_.recovery()->before)) {
    if (!now.contains(host)) lost.push_back(host);
  }
  return lost;
}

// Finds the state to go on from, among all ranks that are left.
Result<void> TrainRun::find_recovery_point() {
  HF_TRY_VOID(complete_rollback());
  HF_TRY(setup_.start, source_of_world().at_recovery(recovery_.inventory.shm_run_id));
  return {};
}

Result<PhaseOutcome> TrainRun::recover(const Error& fault) {
  note_fault(fault);
  enter_recovery(launched_.watch, recovery_.step, setup_.config);
  if (Result<void> group_rebuilt = rebuild_group(); !group_rebuilt.ok()) {
    record_for_the_dead();
    recovery_.failed = true;
    // Another start may have the run directory by now.
    if (launched_.membership->lost_quorum()) setup_.claim.reset();
    if (launched_.membership->cut_off()) return group_rebuilt.error();
    // The fault that was noticed first is the error to report if this rank is cut off from all others.
    return group_.world().communicator.abandoned() ? fault : group_rebuilt.error();
  }
  HF_FAULT_POINT(launched_.faults, "recover.after_shrink");
  return plan_epoch();
}

// Goes back to an older state with the same ranks: all have agreed that the newest ones do not count.
Result<PhaseOutcome> TrainRun::roll_back() {
  recovery_.step = step();
  const std::string reason = recovery_.rollback.has_value() ? recovery_.rollback->generation.reason : "";
  begin_record(reason, group_.assignment().shape.active());
  journal_.recovery()->goes_back = true;
  recovery_.inventory.lost_some = false;
  enter_recovery(launched_.watch, recovery_.step, setup_.config);
  HF_FAULT_POINT(launched_.faults, "rollback.begin");
  wait_for_given_up_saves();
  drop_epoch();
  return plan_epoch();
}

// Plans and begins the next epoch with the ranks that are in the group, and finds its state.
Result<PhaseOutcome> TrainRun::plan_epoch() {
  journal_.phase_ns();
  enter_recovery(launched_.watch, recovery_.step, setup_.config);
  HF_TRY(const std::vector<RecoveryInventory> inventories, exchange_inventories());
  RecoveryPlan plan = plan_recovery(inventories, setup_.request);
  adopt_inventory(plan.known);
  switch (plan.action) {
    case RecoveryAction::end:
      recovery_.failed = true;
      return *plan.error;
    case RecoveryAction::start_again:  // a start's choice of a generation is in no file yet
      return PhaseOutcome::not_begun;
    case RecoveryAction::admit_joiners:
      return PhaseOutcome::joiners_come;
    case RecoveryAction::too_few_ranks:
      HF_TRY_VOID(begin_epoch(*plan.error));  // returns the error: no epoch follows
      break;
    case RecoveryAction::use_assignment:
      HF_TRY_VOID(begin_epoch(std::move(*plan.assignment)));
      break;
  }
  HF_TRY_VOID(find_recovery_point());
  if (Result<void> kept = check_kept_state(recovery_.inventory, setup_.start, lost_hosts()); !kept.ok()) {
    recovery_.failed = true;
    return kept.error();
  }
  HF_FAULT_POINT(launched_.faults, "recover.before_load");
  journal_.recovery()->plan_ns += journal_.phase_ns();
  return PhaseOutcome::ready;
}

}  // namespace holdfast::elastic
