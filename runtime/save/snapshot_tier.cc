#include "runtime/save/snapshot_tier.h"

#include <algorithm>
#include <iterator>

#include "parallel/comm/agreement.h"
#include "parallel/comm/device_wait.h"
#include "runtime/core/kept_memory.h"
#include "runtime/core/units.h"
#include "runtime/os/console.h"
#include "runtime/os/machine_facts.h"
#include "runtime/rank/watch.h"

namespace holdfast::save {

SnapshotTier::SnapshotTier(StateView& view, std::uint64_t writer) : view_(&view), writer_(writer) {}

void SnapshotTier::cancel() {
  cancelled_ = true;
  replication_.replicas.reset();  // does not wait for other ranks; its threads read slots
}

void SnapshotTier::finish_making_slots() {
  cancelled_ = true;  // no wait for room
  cleanup_.wait();
  last_slot_.wait();
}

SnapshotTier::~SnapshotTier() {
  cancel();
  finish_making_slots();  // they use the pool, to which all slots return
  copy_job_.wait();
  snapshots_.clear();
  if (memory_.has_value() && view_->snapshots.slots() != nullptr) memory_->keep_in(*view_->snapshots.slots());
}

void SnapshotTier::release_old_slots(const std::optional<SnapshotStep>& resumed) {
  SlotPool* const slots = view_->snapshots.slots();
  if (slots == nullptr) return;
  slots->begin(view_->rank.env, digest_of(view_->state.shm_run_id), writer_, resumed);
  slots->trim(view_->rank.env, slot_lengths());
}

Result<void> SnapshotTier::prepare(const std::optional<SnapshotStep>& resumed) {
  HF_TRY(memory_, SnapshotMemory::create(*view_, writer_));
  for (const std::span<std::byte> slot : memory_->slots())
    snapshots_.push_back(std::make_unique<Snapshot>(*view_, slot, writer_));
  if (!memory_->outlives_process()) return {};
  HF_TRY_VOID(make_replicas());
  fault_in_slots();
  // All ranks of the host have taken what they need of the old slots.
  if (view_->snapshots.slots() != nullptr) view_->snapshots.slots()->forget_unneeded();
  static_cast<void>(
      remove_unneeded_snapshots(view_->rank.env, digest_of(view_->state.shm_run_id), resumed, writer_)
          .ok());  // else they are removed later
  return {};
}

// Returns the lengths of the slots that this rank is about to make.
std::vector<std::uint64_t> SnapshotTier::slot_lengths() const {
  const SnapshotTiers tiers = view_->snapshots.decision().room.tiers;
  std::vector<std::uint64_t> lengths;
  if (tiers == SnapshotTiers::none) return lengths;
  lengths.assign(static_cast<std::size_t>(SnapshotMemory::slots_at_once), view_->snapshots.bytes());
  if (tiers != SnapshotTiers::all) return lengths;
  for (const int rank : view_->snapshots.kept_ranks())
    lengths.insert(lengths.end(), ReplicaKeeper::slots, view_->snapshots.bytes_of(rank));
  return lengths;
}

Result<void> SnapshotTier::make_replicas() {
  if (view_->snapshots.buddies().empty()) return {};
  if (const MemoryDecision& decision = view_->snapshots.decision();
      decision.room.tiers != SnapshotTiers::all) {
    replication_.warning =
        decision.warning + ". A host that is lost costs the steps since the newest checkpoint on disk";
    return {};
  }
  Result<std::unique_ptr<Replicas>> replicas = Replicas::create(*view_, writer_);
  if (replicas.ok()) {
    replication_.replicas = std::move(replicas).value();
  } else if (view_->rank.communicator.abandoned()) {
    return replicas.error();
  } else {
    replication_.warning = replicas.error().message;
  }
  return {};
}

// Faults in the pages of the slots, on all threads that will train: beside the steps a single thread would do it, and
// hold up all that compute together. Pages that this process has had already take no time.
void SnapshotTier::fault_in_slots() {
  std::vector<std::span<std::byte>> slots = memory_->slots();
  if (has_replicas()) std::ranges::copy(replication_.replicas->slots(), std::back_inserter(slots));
  for (const std::span<std::byte> slot : slots)
    fault_in(slot, view_->rank.host_threads(), [this] { mark(view_->rank.watch); });
}

std::optional<std::uint64_t> SnapshotTier::confirmed_step() const {
  if (confirmed_ == nullptr) return std::nullopt;
  return confirmed_->state().step;
}

Snapshot* SnapshotTier::free_snapshot(const std::vector<const Snapshot*>& waiting) const {
  Snapshot* oldest = nullptr;
  for (const std::unique_ptr<Snapshot>& each : snapshots_) {
    Snapshot* const snapshot = each.get();
    if (snapshot == confirmed_ || snapshot == replication_.sent ||
        (is_copying() && snapshot == copy_->snapshot) ||
        std::ranges::find(waiting, snapshot) != waiting.end())
      continue;
    if (oldest == nullptr || snapshot->state().step < oldest->state().step) oldest = snapshot;
  }
  return oldest;
}

std::optional<int> SnapshotTier::unused_slot(const std::vector<const Snapshot*>& waiting) const {
  const Snapshot* unused = free_snapshot(waiting);
  if (unused == nullptr) unused = free_snapshot({});
  if (unused == nullptr || !outlives_process()) return std::nullopt;
  const auto is_it = [&](const std::unique_ptr<Snapshot>& each) { return each.get() == unused; };
  return static_cast<int>(std::ranges::find_if(snapshots_, is_it) - snapshots_.begin());
}

const std::vector<OptimizerTensor>& SnapshotTier::begin_by_update(Snapshot& free) {
  written_ = &free;
  return free.begin_by_update();
}

void SnapshotTier::updated(std::int64_t duration_ns) {
  if (written_ == nullptr) return update_seconds_.add(static_cast<double>(duration_ns) / 1e9);
  const auto usual_ns = static_cast<std::int64_t>(update_seconds_.value() * 1e9);
  longer_update_ns_ = update_seconds_.count() == 0 ? 0 : std::max<std::int64_t>(duration_ns - usual_ns, 0);
}

bool SnapshotTier::complete_by_update() {
  if (written_ == nullptr) return false;
  const std::int64_t begin_ns = view_->rank.env.monotonic_ns();
  copy_ = std::make_shared<SnapshotCopy>(view_->rank.env);
  copy_->snapshot = std::exchange(written_, nullptr);
  copy_->is_by_update = true;
  copy_->begin_ns = begin_ns;
  copy_->snapshot->complete_by_update();
  copy_->duration_ns = view_->rank.env.monotonic_ns() - begin_ns;
  copy_->processor_ns = longer_update_ns_ + copy_->duration_ns;
  copy_->is_done = true;
  return true;
}

std::shared_ptr<SnapshotCopy> SnapshotTier::begin_copy(Snapshot& free, std::int64_t begin_ns) {
  copy_ = std::make_shared<SnapshotCopy>(view_->rank.env);
  copy_->snapshot = &free;
  copy_->begin_ns = begin_ns;
  free.begin();
  copy_->stall_ns = view_->rank.env.monotonic_ns() - begin_ns;
  return copy_;
}

void SnapshotTier::copy_in_background() {
  const bool starts =
      copy_job_.start(view_->rank.env, "snapshot", [copy = copy_]() -> Result<std::monostate> {
        copy->make();
        return std::monostate();
      });
  if (!starts) copy_->make();  // votes count on it
}

Result<void> SnapshotTier::wait() {
  copy_job_.wait();
  if (!is_copying()) return {};
  wait_for_copy();
  return copy_->outcome;
}

// Waits for the copy, and polls meanwhile where the rank's threads do not compute, because peers expect its
// heartbeat.
void SnapshotTier::wait_for_copy() {
  constexpr std::int64_t look_again_us = 100;
  if (view_->rank.device.host_sees_memory()) return copy_->wait();
  while (!copy_->is_done) {
    poll_peers(view_->rank.communicator);
    view_->rank.env.sleep_us(look_again_us);
  }
}

void SnapshotTier::vote(SaveVotes& votes) {
  if (is_copying()) {
    const std::int64_t begin_ns = view_->rank.env.monotonic_ns();
    const HostSpan wait(&view_->rank.spans, {.kind = SpanKind::wait_snapshot});
    wait_for_copy();
    copy_->stall_ns += view_->rank.env.monotonic_ns() - begin_ns;
  }
  const bool settled = cleanup_.finished() && !is_making_slot();
  votes.last_slots = settled && memory_->slots().size() > snapshots_.size() ? 1 : 0;
  votes.settling = settled ? 0 : 1;
  if (is_sending() && replication_.replicas->finished())
    (replication_.replicas->succeeded() ? votes.replicated : votes.unreplicated) = 1;
}

Result<void> SnapshotTier::advance(const SaveVotes& sums) {
  written_ = nullptr;  // of an update whose step was saved otherwise
  if (sums.last_slots == view_->rank.communicator.size())
    snapshots_.push_back(std::make_unique<Snapshot>(*view_, memory_->slots().back(), writer_));
  is_settled_ = sums.settling == 0;
  HF_TRY_VOID(end_sending(sums));
  confirm_newest();
  return {};
}

// Confirms the newest snapshot: every rank has voted, which none does before its copy is complete. Where
// there are replicas, this only begins to send them.
void SnapshotTier::confirm_newest() {
  if (!is_copying()) return;
  const std::shared_ptr<SnapshotCopy> newest = std::exchange(copy_, nullptr);
  if (copy_job_.started()) static_cast<void>(copy_job_.take().ok());
  // Each thread that trains loses the time of this copy, because as many threads copy as train (snapshot.h).
  if (view_->rank.device.host_sees_memory()) copy_ns_ = newest->processor_ns;
  if (has_replicas()) {
    if (!is_sending()) begin_sending(*newest->snapshot);
  } else if (outlives_process()) {
    confirm(*newest->snapshot);
  }
}

// Marks a snapshot as confirmed. Older snapshots are replaced once, after the first that is confirmed.
void SnapshotTier::confirm(const Snapshot& snapshot) {
  confirmed_ = &snapshot;
  if (cleanup_.started()) return;
  cleanup_.start(view_->rank.env, "slot cleanup", [this]() -> Result<std::monostate> {
    view_->rank.env.lower_thread_priority();
    HF_TRY_VOID(replace_older());
    return std::monostate();
  });
}

// Removes the slots of a step that was resumed, which are not needed any more; one of them becomes the missing slot.
// Several ranks need that slot soon: a snapshot that is on its way to a buddy can be neither filled nor drained, and a
// recovery in place that keeps one slot takes the others over. Roll-backs want older steps in RAM.
Result<void> SnapshotTier::replace_older() {
  SlotPool* const slots = view_->snapshots.slots();
  if (slots != nullptr) slots->confirmed();
  const bool has_older = slots != nullptr && slots->unneeded_bytes() > 0;
  const bool needs_it_soon =
      view_->rank.communicator.size() > 1 || view_->rank.config.verdict.asks_for_rollbacks();
  const Result<void> made = has_older || needs_it_soon ? make_last_slot() : Result<void>();
  if (slots != nullptr) slots->forget();
  HF_TRY_VOID(outcome_of(remove_snapshots(view_->rank.env, digest_of(view_->state.shm_run_id), writer_)));
  return made;
}

Result<void> SnapshotTier::make_last_slot() {
  if (!memory_->lacks_slot()) return {};
  Result<void> made = wait_for_room();
  if (made.ok()) made = memory_->make_last(*view_, writer_);
  if (!made.ok()) print_message("RAM snapshots go on with two slots: {}", made.error().message);
  return made;
}

void SnapshotTier::want_slot() {
  if (!outlives_process() || !cleanup_.finished() || last_slot_.started() || !memory_->lacks_slot()) return;
  last_slot_.start(view_->rank.env, "last slot", [this]() -> Result<std::monostate> {
    view_->rank.env.lower_thread_priority();
    HF_TRY_VOID(make_last_slot());
    return std::monostate();
  });
}

// Waits until the host has room for the missing slot, because another rank may not have released its part of
// the resumed step yet.
Result<void> SnapshotTier::wait_for_room() {
  SlotPool* const slots = view_->snapshots.slots();
  if (slots == nullptr) return {};
  Env& env = view_->rank.env;
  slots->trim(env, {view_->snapshots.bytes()});
  const std::uint64_t new_bytes =
      view_->snapshots.bytes() - std::min(slots->unneeded_bytes(), view_->snapshots.bytes());
  const std::int64_t timeout_ms = view_->rank.config.elastic.memory_timeout_ms;
  const std::int64_t end_ns = env.monotonic_ns() + timeout_ms * 1'000'000;
  constexpr std::int64_t look_again_us = 50'000;
  for (;;) {
    const std::optional<MemoryRoom> room = memory_room(env);
    if (!room.has_value() || room->available_bytes >= new_bytes || cancelled_) return {};
    if (env.monotonic_ns() >= end_ns) {
      return fail(ExitCode::does_not_fit, "host {} has {} available, and {} are needed, after {}",
                  env.host_name(), format_bytes(room->available_bytes), format_bytes(new_bytes),
                  format_duration(timeout_ms));
    }
    env.sleep_us(look_again_us);
  }
}

void SnapshotTier::begin_sending(const Snapshot& snapshot) {
  const auto step_of = [&](const Snapshot& of) {
    return SnapshotStep{.writer = writer_, .generation = of.state().generation, .step = of.state().step};
  };
  replication_.sent = &snapshot;
  replication_.replicas->send(step_of(snapshot), snapshot.memory(),
                              confirmed_ == nullptr ? SnapshotStep{} : step_of(*confirmed_));
}

// Ends the sending of a snapshot when all ranks have sent it or failed to do so.
Result<void> SnapshotTier::end_sending(const SaveVotes& sums) {
  if (!is_sending() || sums.replicated + sums.unreplicated < view_->rank.communicator.size()) return {};
  const Snapshot* const snapshot = std::exchange(replication_.sent, nullptr);
  ReplicaReport report = replication_.replicas->take();
  if (sums.unreplicated == 0) {
    confirm(*snapshot);
  } else {
    report.outcome = agree_on_outcome(view_->rank.communicator, view_->rank.waiter, report.outcome,
                                      view_->rank.env.host_name());
    HF_CHECK(!report.outcome.ok());
    if (view_->rank.communicator.abandoned()) return report.outcome;
  }
  replication_.reports.push_back(std::move(report));
  return {};
}

}  // namespace holdfast::save
