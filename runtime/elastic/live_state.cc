#include "runtime/elastic/live_state.h"

#include <algorithm>

#include "checkpoint/ram_tier.h"
#include "runtime/save/snapshot.h"
#include "runtime/train/step_attempt.h"

namespace holdfast::elastic {

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
  if (memory->bytes().size() < worker.snapshots().bytes())
    return fail(ExitCode::checkpoint, "{} has become smaller than a snapshot", name);
  worker.links().abort_nccl(
      "another rank is gone");  // the copies come after NCCL's work in the device's queue
  worker.rank().device.synchronize();
  // Whoever loads the state compares it with the digests of its update, which say nothing of what that update read.
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
