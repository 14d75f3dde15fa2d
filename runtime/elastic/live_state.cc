#include "runtime/elastic/live_state.h"

#include <algorithm>

#include "checkpoint/ram_tier.h"
#include "runtime/rank/watch.h"
#include "runtime/save/snapshot.h"

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
  ShardedOptimizer& optimizer = worker.optimizer();
  Device& device = worker.rank().device;
  device.synchronize();
  if (!optimizer.finding().has_value()) {  // what the last update found is forgotten by a check
    optimizer.check_state(device, worker.state().step, [&] {
      device.synchronize();
      mark(worker.rank().watch);
    });
  }
  if (optimizer.finding().has_value())
    return fail(ExitCode::checkpoint, "weights or moments of this rank have changed in memory");
  if (!worker.position().is_at(worker.state()))
    return fail(ExitCode::checkpoint, "the step or the position in the data has changed in memory");
  Snapshot snapshot(worker.state_view(), memory->bytes(), writer);
  snapshot.begin();
  if (!snapshot.complete()) return worker.state_view().device_outcome();
  return {};
}

}  // namespace holdfast::elastic
