#include "runtime/save/snapshot.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "checkpoint/ram_runs.h"
#include "checkpoint/ram_tier.h"
#include "parallel/comm/agreement.h"
#include "runtime/core/kept_memory.h"
#include "runtime/os/background_job.h"
#include "runtime/os/machine_facts.h"
#include "runtime/os/paths.h"
#include "runtime/rank/watch.h"
#include "runtime/save/checkpoint_parts.h"

namespace holdfast::save {
namespace {

std::vector<ShardSpec> specs_of(const std::vector<StatePiece>& pieces) {
  std::vector<ShardSpec> specs;
  for (const StatePiece& piece : pieces) specs.push_back(piece.spec);
  return specs;
}

}  // namespace

Snapshot::Snapshot(StateView& view, std::span<std::byte> memory, std::uint64_t writer)
    : view_(&view), memory_(memory), slot_(memory, specs_of(saved_state(view))) {
  const std::vector<StatePiece> pieces = saved_state(view);
  std::set<std::string_view> trained;  // tensors that have moments
  for (const StatePiece& piece : pieces) {
    if (piece.spec.kind != "weight") trained.insert(piece.spec.tensor);
  }
  for (const bool is_trained : {true, false}) {
    for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
      if (trained.contains(pieces[piece].spec.tensor) == is_trained)
        add_parts(piece, pieces[piece].bytes, false);
    }
    (is_trained ? trained_parts_ : state_parts_) = parts_.size();
  }
  for (std::size_t piece = 0; piece < pieces.size(); ++piece) add_parts(piece, pieces[piece].digests, true);
  run_directory_ = real_path(view.rank.config.run.directory);
  identity_.run = digest_of(view.state.shm_run_id);
  identity_.host = digest_of(view.rank.env.host_id());
  identity_.writer = writer;
  identity_.rank = static_cast<std::uint32_t>(view.rank.communicator.rank());
  identity_.ranks = static_cast<std::uint32_t>(view.rank.communicator.size());
}

void Snapshot::add_parts(std::size_t piece, std::span<const std::byte> source, bool is_digests) {
  const std::uint64_t max_bytes =
      view_->rank.device.host_sees_memory() ? SnapshotSlot::chunk_bytes : SnapshotPlan::staging_bytes;
  for (std::uint64_t offset = 0; offset < source.size(); offset += max_bytes) {
    const std::uint64_t part_bytes = std::min(max_bytes, source.size() - offset);
    parts_.push_back({piece, offset, source.subspan(offset, part_bytes), is_digests});
  }
}

// Takes the state of the run as it is after the last step.
void Snapshot::take_state() {
  state_ = view_->state;
  identity_.generation = state_.generation;
  identity_.step = state_.step;
  manifest_ = make_manifest(*view_, state_, {});
  if (!run_directory_.empty()) manifest_.values[run_directory_key] = run_directory_;
}

const std::vector<OptimizerTensor>& Snapshot::begin_by_update() {
  HF_FAULT_POINT(view_->rank.faults, "snapshot.before_copy");
  slot_.begin();
  if (!table_.empty()) return table_;
  std::vector<std::byte*> targets;
  std::size_t piece = 0;
  for (const OwnedState& owned : view_->optimizer.state())
    targets.push_back(view_->snapshots.saves(owned.spec) ? slot_.room(piece++).data() : nullptr);
  table_ = view_->optimizer.keeping_table(targets);
  return table_;
}

void Snapshot::complete_by_update() {
  take_state();
  HF_FAULT_POINT(view_->rank.faults, "snapshot.mid_copy");
  copy(has_frozen_ ? state_parts_ : trained_parts_, parts_.size());
  has_frozen_ = true;
  HF_FAULT_POINT(view_->rank.faults, "snapshot.before_seal");
  slot_.seal(identity_, manifest_, SnapshotSlot::Digests::alone);
  HF_FAULT_POINT(view_->rank.faults, "snapshot.after_seal");
}

void Snapshot::begin() {
  take_state();
  copied_parts_ = view_->optimizer.has_digests() ? parts_.size() : state_parts_;
  slot_.begin();
  updated_ = view_->rank.device.ticket();
  sound_ = view_->rank.device.status().ok();  // a copy can succeed though the update was never launched
}

bool Snapshot::complete() {
  HF_FAULT_POINT(view_->rank.faults, "snapshot.before_copy");
  if (!sound_ || !copy(0, copied_parts_)) return false;
  has_frozen_ = true;
  HF_FAULT_POINT(view_->rank.faults, "snapshot.before_seal");
  slot_.seal(identity_, manifest_,
             copied_parts_ > state_parts_ ? SnapshotSlot::Digests::filled : SnapshotSlot::Digests::unknown);
  HF_FAULT_POINT(view_->rank.faults, "snapshot.after_seal");
  return true;
}

void SnapshotCopy::make() {
  const std::int64_t copy_begin_ns = env->monotonic_ns(), processor_before_ns = env->thread_processor_ns();
  if (!snapshot->complete())
    outcome = fail(ExitCode::communication, "the device failed while its state was copied");
  duration_ns = env->monotonic_ns() - copy_begin_ns;
  processor_ns = env->thread_processor_ns() - processor_before_ns;
  const std::lock_guard guard(mutex);  // also while it notifies: who waits may destroy this object next
  is_done = true;
  changed->notify();
}

void SnapshotCopy::wait() {
  std::unique_lock guard(mutex);
  changed->wait(guard, [this] { return is_done.load(); });
}

// Copies parts of the state, or of its digests. Returns false where the device has failed.
bool Snapshot::copy(std::size_t first_part, std::size_t end_part) {
  Device& device = view_->rank.device;
  const std::span<const std::span<std::byte>> staging = view_->snapshots.staging();  // one for each thread
  std::atomic<std::size_t> next = first_part, next_thread = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    const std::size_t thread = next_thread++;
    for (std::size_t i = next++; i < end_part && !failed; i = next++) {
      if (first_part == 0 && i == state_parts_ / 2) HF_FAULT_POINT(view_->rank.faults, "snapshot.mid_copy");
      std::span<const std::byte> source = parts_[i].source;
      if (!staging.empty()) {
        const std::span<std::byte> staged = staging[thread].first(source.size());
        if (!device.read_beside(updated_, source, staged.data())) {
          failed = true;
          return;
        }
        source = staged;
      }
      if (parts_[i].is_digests) {
        std::ranges::copy(source, slot_.digests(parts_[i].piece).subspan(parts_[i].offset).begin());
      } else {
        slot_.copy(parts_[i].piece, parts_[i].offset, source);
      }
      if (view_->rank.watch != nullptr) view_->rank.watch->moved(source.size());
    }
  };
  const int max_threads = staging.empty() ? view_->rank.host_threads() : static_cast<int>(staging.size());
  {
    const bool has_state = first_part < state_parts_;  // digests alone are a moment's work
    const int threads = has_state ? std::min(max_threads, view_->rank.host_threads()) : 1;
    const BackgroundHelpers helpers(view_->rank.env, "snapshot copy", threads - 1, work);
    work();
  }
  return !failed;
}

Result<SnapshotMemory> SnapshotMemory::create(StateView& view, std::uint64_t writer) {
  HF_TRY(SnapshotMemory memory, reserve(view, writer));
  if (!memory.is_shared_) fault_in(memory.slots_.front(), view.rank.host_threads());
  return memory;
}

Result<SnapshotMemory> SnapshotMemory::reserve(StateView& view, std::uint64_t writer) {
  SnapshotMemory memory;
  const Communicator& communicator = view.rank.communicator;
  if (view.snapshots.wants_shared_memory()) {
    const Result<void> agreed = agree_on_outcome(view.rank.communicator, view.rank.waiter,
                                                 memory.make_shared(view, writer), view.rank.env.host_name());
    memory.is_shared_ = agreed.ok();
    if (agreed.ok()) return memory;
    if (agreed.error().code == ExitCode::communication) return agreed.error();
    memory.warning_ = agreed.error().message;
    for (int slot = 0; slot < shared_slots; ++slot) {
      const std::string name =
          snapshot_name(digest_of(view.state.shm_run_id), writer, communicator.rank(), slot);
      // Memory that cannot be removed now is found by its name, and is removed with the run's other memory.
      if (const Result<void> removed = view.rank.env.remove_shared_memory(name); !removed.ok())
        memory.warning_ += "; " + removed.error().message;
    }
    memory.shared_.clear();
    memory.names_.clear();
    memory.slots_.clear();
  }
  if (!memory.warning_.empty()) {
    Result<OwnedMemory> owned = host_memory(MemoryKind::host_visible, view.snapshots.bytes());
    HF_TRY_VOID(agree_on_outcome(view.rank.communicator, view.rank.waiter, outcome_of(owned),
                                 view.rank.env.host_name()));
    memory.owned_ = std::move(owned).value();
  }
  memory.slots_.push_back(memory.owned_ != nullptr ? std::span(memory.owned_.get(), view.snapshots.bytes())
                                                   : view.snapshots.memory());
  return memory;
}

Result<void> SnapshotMemory::make_shared(StateView& view, std::uint64_t writer) {
  if (const std::string removal = shared_memory_removal(view.rank.env); !removal.empty())
    return fail(ExitCode::does_not_fit, "{}", removal);
  const MemoryDecision& decision = view.snapshots.decision();
  if (decision.room.tiers == SnapshotTiers::none) {
    return fail(ExitCode::does_not_fit,
                "{}. A process that is lost costs the steps since the newest checkpoint on disk",
                decision.warning);
  }
  for (int slot = 0; slot < slots_at_once; ++slot) {
    HF_TRY_VOID(make_one(view, writer, slot));
    mark(view.rank.watch);
  }
  return {};
}

Result<void> SnapshotMemory::make_one(StateView& view, std::uint64_t writer, int slot) {
  const std::string name =
      snapshot_name(digest_of(view.state.shm_run_id), writer, view.rank.communicator.rank(), slot);
  HF_TRY(std::unique_ptr<SharedMemory> memory, view.snapshots.make_slot(name, view.snapshots.bytes()));
  slots_.push_back(memory->bytes());
  shared_.push_back(std::move(memory));
  names_.push_back(name);
  return {};
}

Result<void> SnapshotMemory::make_last(StateView& view, std::uint64_t writer) {
  HF_TRY_VOID(make_one(view, writer, static_cast<int>(shared_.size())));
  fault_in(slots_.back(), view.rank.host_threads());
  return {};
}

void SnapshotMemory::keep_in(SlotPool& pool) {
  for (std::size_t i = 0; i < shared_.size(); ++i) pool.keep(names_[i], std::move(shared_[i]));
  shared_.clear();
  names_.clear();
  slots_.clear();
}

}  // namespace holdfast::save
