#include "runtime/save/snapshot_memory.h"

#include <utility>

#include "checkpoint/ram_tier.h"
#include "parallel/comm/agreement.h"
#include "runtime/core/kept_memory.h"
#include "runtime/os/shared_memory_facts.h"
#include "runtime/rank/watch.h"

namespace holdfast {

Result<SnapshotMemory> SnapshotMemory::create(Worker& worker, std::uint64_t writer) {
  HF_TRY(SnapshotMemory memory, reserve(worker, writer));
  if (!memory.is_shared_) fault_in(memory.slots_.front(), worker.host_threads());
  return memory;
}

Result<SnapshotMemory> SnapshotMemory::reserve(Worker& worker, std::uint64_t writer) {
  SnapshotMemory memory;
  const Communicator& communicator = worker.communicator();
  if (worker.config().checkpoint.ram_every_steps != 0) {
    const Result<void> agreed = agree_on_outcome(
        worker.communicator(), worker.waiter(), memory.make_shared(worker, writer), worker.env().host_name());
    memory.is_shared_ = agreed.ok();
    if (agreed.ok()) return memory;
    if (agreed.error().code == ExitCode::communication) return agreed.error();
    memory.complaint_ = agreed.error().message;
    for (int slot = 0; slot < shared_slots; ++slot) {
      const std::string name =
          snapshot_name(digest_of(worker.state().memory_id), writer, communicator.rank(), slot);
      // What cannot be removed now is found by the name, and goes with the run's others.
      if (const Result<void> removed = worker.env().remove_shared_memory(name); !removed.ok())
        memory.complaint_ += "; " + removed.error().message;
    }
    memory.shared_.clear();
    memory.names_.clear();
    memory.slots_.clear();
  }
  if (!memory.complaint_.empty()) {
    Result<OwnedMemory> owned = host_memory(MemoryPlace::host_visible, worker.snapshot_bytes());
    HF_TRY_VOID(agree_on_outcome(worker.communicator(), worker.waiter(), outcome_of(owned),
                                 worker.env().host_name()));
    memory.owned_ = std::move(owned).value();
  }
  memory.slots_.push_back(memory.owned_ != nullptr ? std::span(memory.owned_.get(), worker.snapshot_bytes())
                                                   : worker.snapshot_memory());
  return memory;
}

Result<void> SnapshotMemory::make_shared(Worker& worker, std::uint64_t writer) {
  if (const std::string removal = shared_memory_removal(worker.env()); !removal.empty())
    return fail(ExitCode::does_not_fit, "{}", removal);
  const MemoryDecision& decision = worker.memory_decision();
  if (decision.room.tiers == SnapshotTiers::none) {
    return fail(ExitCode::does_not_fit,
                "{}. A process that is lost costs the steps since the newest checkpoint on disk",
                decision.complaint);
  }
  for (int slot = 0; slot < slots_at_once; ++slot) {
    HF_TRY_VOID(make_one(worker, writer, slot));
    mark(worker.watch());
  }
  return {};
}

Result<void> SnapshotMemory::make_one(Worker& worker, std::uint64_t writer, int slot) {
  const std::string name =
      snapshot_name(digest_of(worker.state().memory_id), writer, worker.communicator().rank(), slot);
  HF_TRY(std::unique_ptr<SharedMemory> memory, worker.make_slot(name, worker.snapshot_bytes()));
  slots_.push_back(memory->bytes());
  shared_.push_back(std::move(memory));
  names_.push_back(name);
  return {};
}

Result<void> SnapshotMemory::make_last(Worker& worker, std::uint64_t writer) {
  HF_TRY_VOID(make_one(worker, writer, static_cast<int>(shared_.size())));
  fault_in(slots_.back(), worker.host_threads());
  return {};
}

void SnapshotMemory::keep_in(SlotPool& pool) {
  for (std::size_t i = 0; i < shared_.size(); ++i) pool.keep(names_[i], std::move(shared_[i]));
  shared_.clear();
  names_.clear();
  slots_.clear();
}

}  // namespace holdfast
