#include "runtime/elastic/epoch_memory.h"

#include <algorithm>

#include "checkpoint/ram_tier.h"
#include "runtime/os/console.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/save.h"
#include "runtime/save/snapshot.h"
#include "runtime/train/worker_access.h"

namespace holdfast::elastic {

EpochMemory::EpochMemory(const Group& group, const RunSetup& setup, const RecoveryInventory& known)
    : group_(group),
      setup_(setup),
      known_(known),
      memory_(group.launched().prepared == nullptr ? own_ : *group.launched().prepared) {
  memory_.kept.spoil_reused(group.launched().spoil_kept_memory);
}

MemoryTerms EpochMemory::terms() {
  const std::string& id = known_.shm_run_id.empty() ? setup_.start.shm_run_id : known_.shm_run_id;
  const bool is_launched_layout = !group_.recovers() && !memory_.decision.lacks &&
                                  group_.world().communicator.size() == known_.launched_ranks;
  return {.timeout_ms = memory_.decision.lacks ? 0 : setup_.config.elastic.memory_timeout_ms,
          .had = setup_.start.snapshot.has_value() ? SnapshotTiers::all : memory_.decision.room.tiers,
          .has_all_ranks = is_launched_layout,
          .run = id.empty() ? std::nullopt : std::optional(digest_of(id)),
          .resumed = setup_.start.snapshot,
          .slots = &memory_.slots};
}

void EpochMemory::begin_to_prove(const RunState& state) {
  if (memory_.verified_step.has_value()) return;
  memory_.verified_step = group_.is_joiner() || state.audited_step == 0 ? state.step : state.audited_step;
}

void EpochMemory::give_back() {
  memory_.kept.release();
  memory_.slots.forget();
}

// New slots are made from the old ones (SlotPool); if there will be none, the old ones only take memory.
void EpochMemory::drop_unneeded() {
  if (has_snapshots()) return;
  memory_.slots.forget();
  remove_old_snapshots(setup_.start.snapshot);
}

void EpochMemory::remove_old_snapshots(const std::optional<SnapshotStep>& resumed) const {
  if (known_.shm_run_id.empty()) return;
  static_cast<void>(
      remove_unneeded_snapshots(group_.launched().env, digest_of(known_.shm_run_id), resumed).ok());
}

void EpochMemory::keep_live_state(Worker& worker, const MembershipView& of_epoch,
                                  std::optional<int> slot) const {
  if (!slot.has_value() || !no_coordinate_is_lost(group_.assignment(), of_epoch, group_.view())) return;
  enter_recovery(group_.launched().watch, worker.state().step, setup_.config);
  const Result<void> sealed = seal_live_state(worker, setup_.start.writer, *slot);
  if (!sealed.ok()) print_message("the step is not redone from the state in use: {}", sealed.error().message);
}

bool no_coordinate_is_lost(const RankAssignment& assignment, const MembershipView& before,
                           const MembershipView& now) {
  std::vector<int> lost;
  for (const Member& member : members_lost(before, now)) lost.push_back(member.launched_rank);
  return std::ranges::none_of(assignment.active_ranks, [&](int rank) {
    return std::ranges::find(lost, before.members[static_cast<std::size_t>(rank)].launched_rank) !=
           lost.end();
  });
}

Result<void> seal_live_state(Worker& worker, std::uint64_t writer, int slot) {
  const std::string name =
      snapshot_name(digest_of(worker.state().shm_run_id), writer, worker.rank().communicator.rank(), slot);
  HF_TRY(const std::unique_ptr<SharedMemory> memory, worker.rank().env.open_shared_memory(name));
  if (memory->bytes().size() < worker.state_view().snapshots.bytes())
    return fail(ExitCode::checkpoint, "{} has become smaller than a snapshot", name);
  worker.rank().links.abort_nccl(
      "another rank is gone");  // the copies come after NCCL's work in the device's queue
  worker.rank().device.synchronize();
  // The rank that loads the state compares it with the digests of its update, which do not cover what that update read.
  if (train::finds_corruption(worker)) {
    return fail(ExitCode::checkpoint,
                "the last update of this rank read state that has changed in memory, or was a wrong one");
  }
  if (!worker.position().is_at(worker.state()))
    return fail(ExitCode::checkpoint, "the step or the position in the data has changed in memory");
  Snapshot snapshot(worker.state_view(), memory->bytes(), writer);
  snapshot.begin();
  if (!snapshot.complete()) return worker.state_view().device_outcome();
  return {};
}

}  // namespace holdfast::elastic
