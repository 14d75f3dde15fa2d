#include "runtime/save/snapshot_memory.h"

#include <utility>

#include "checkpoint/ram_tier.h"
#include "parallel/comm/agreement.h"
#include "runtime/core/kept_memory.h"
#include "runtime/os/machine_facts.h"
#include "runtime/rank/watch.h"

namespace holdfast::save {

Result<SnapshotMemory> SnapshotMemory::create(StateView& view, std::uint64_t writer) {
  HF_TRY(SnapshotMemory memory, reserve(view, writer));
  if (!memory.is_shared_) fault_in(memory.slots_.front(), view.rank.host_threads());
  return memory;
}

Result<SnapshotMemory> SnapshotMemory::reserve(StateView& view, std::uint64_t writer) {
  SnapshotMemory memory;
  const Communicator& communicator = view.rank.communicator;
  if (view.rank.config.checkpoint.ram_every_steps != 0) {
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
