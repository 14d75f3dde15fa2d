#include "runtime/save/state_saver.h"

#include <utility>

#include "parallel/comm/agreement.h"
#include "parallel/comm/rank_sum.h"
#include "runtime/rank/watch.h"
#include "runtime/save/checkpoint_parts.h"

namespace holdfast::save {

StateSaver::StateSaver(StateView& view, CheckpointStore& store, std::uint64_t writer,
                       const std::optional<SnapshotStep>& resumed, std::optional<DiskTier> tier)
    : view_(&view), resumed_(resumed), snapshots_(view, writer), disk_(view, store, std::move(tier)) {}

void StateSaver::cancel() {
  disk_.cancel();
  snapshots_.cancel();
}

StateSaver::~StateSaver() {
  cancel();
}

Result<void> StateSaver::prepare() {
  snapshots_.release_old_slots(resumed_);
  // This agreement ensures that every rank of the host has released the memory that its new slots do not
  // need.
  HF_TRY_VOID(agree_on_outcome(view_->rank.communicator, patient_waiter(*view_), disk_.remove_leftovers(),
                               view_->rank.env.host_name()));
  return snapshots_.prepare(resumed_);
}

const std::vector<OptimizerTensor>* StateSaver::by_update() {
  if (!view_->optimizer.can_keep(view_->rank.device) || snapshots_.is_copying() || snapshots_.is_sending())
    return nullptr;
  Snapshot* const free = snapshots_.free_snapshot(disk_.snapshots());
  return free != nullptr ? &snapshots_.begin_by_update(*free) : nullptr;
}

Result<bool> StateSaver::begin(bool to_disk) {
  if (!to_disk && snapshots_.complete_by_update()) return true;
  Snapshot* free = snapshots_.free_snapshot(disk_.snapshots());
  if (free == nullptr) snapshots_.want_slot();
  if (!to_disk && (snapshots_.is_sending() || free == nullptr)) return false;
  const std::int64_t begin_ns = view_->rank.env.monotonic_ns();
  // The newest update has read the state before it, and the caller has asked what it found.
  if (free == nullptr && view_->state.step > 0) disk_.let_publish(view_->state.step - 1);
  for (; free == nullptr; free = snapshots_.free_snapshot(disk_.snapshots())) HF_TRY_VOID(complete_round());
  std::shared_ptr<SnapshotCopy> copy = snapshots_.begin_copy(*free, begin_ns);
  if (to_disk) {
    disk_.begin(std::move(copy));
  } else {
    snapshots_.copy_in_background();
  }
  return true;
}

SaveVotes StateSaver::vote() {
  SaveVotes votes;
  snapshots_.vote(votes);
  disk_.vote(votes);
  return votes;
}

// Waits for all threads that copy, drain or publish. A slow disk is not a hang, so the deadline is for a part
// of the data that is written, not for all of it.
void StateSaver::wait_beside_watch() {
  RankWatch* const watch = view_->rank.watch;
  const auto busy = [&] { return disk_.is_busy() || snapshots_.is_busy(); };
  constexpr std::int64_t look_again_us = 1000;
  if (watch == nullptr || !busy()) return;
  enter(watch, Phase::save, view_->state.step, view_->rank.config.watchdog.ceiling_ms);
  for (std::uint64_t before = 0; busy(); view_->rank.env.sleep_us(look_again_us)) {
    const std::uint64_t drained = disk_.drained_bytes();
    if (std::exchange(before, drained) != drained) mark(watch);
  }
}

// Holds an extra vote, before which every rank completes the work that it has under way.
Result<void> StateSaver::complete_round() {
  wait_beside_watch();
  disk_.wait();
  if (const Result<void> copied = snapshots_.wait(); !copied.ok()) {
    const Result<void> device = view_->device_outcome();
    view_->rank.communicator.abandon();  // no step follows whose vote would tell the others
    return device.ok() ? copied : device;
  }
  SaveVotes votes = vote();
  HF_TRY_VOID(sum_over_ranks(view_->rank.communicator, patient_waiter(*view_), votes));
  HF_TRY_VOID(confirm(votes));
  return advance(votes);
}

Result<void> StateSaver::finish() {
  disk_.let_publish(view_->state.step);  // no update follows that would find it damaged
  while (snapshots_.is_copying() || disk_.is_saving()) HF_TRY_VOID(complete_round());
  return {};
}

Result<void> StateSaver::finish_with_replicas() {
  disk_.let_publish(view_->state.step);
  while (is_snapshotting() || disk_.is_saving()) HF_TRY_VOID(complete_round());
  return {};
}

}  // namespace holdfast::save
