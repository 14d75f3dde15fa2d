#include "runtime/train/snapshot_memory.h"

#include <algorithm>
#include <atomic>

#include "checkpoint/ram_tier.h"
#include "parallel/agreement.h"
#include "runtime/core/shared_memory_facts.h"
#include "runtime/train/background_job.h"

namespace holdfast {

Result<SnapshotMemory> SnapshotMemory::create(Worker& worker, std::uint64_t writer) {
  HF_TRY(SnapshotMemory memory, reserve(worker, writer));
  for (const std::span<std::byte> slot : memory.slots_) touch(slot, worker.host_threads());
  return memory;
}

// The system finds the pages of memory when it is written for the first time: not beside a step.
void SnapshotMemory::touch(std::span<std::byte> slot, int threads) {
  constexpr std::size_t page_bytes = 4096, part_bytes = std::size_t{16} << 20;
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t begin = 0; (begin = next.fetch_add(part_bytes)) < slot.size();) {
      const std::span<std::byte> part = slot.subspan(begin, std::min(part_bytes, slot.size() - begin));
      for (std::size_t at = 0; at < part.size(); at += page_bytes) part[at] = std::byte{0};
    }
  };
  const BackgroundHelpers helpers(threads - 1, work);
  work();
}

Result<SnapshotMemory> SnapshotMemory::reserve(Worker& worker, std::uint64_t writer) {
  SnapshotMemory memory;
  const Communicator& communicator = worker.communicator();
  if (worker.config().checkpoint.ram_every_steps != 0) {
    const Result<void> agreed = agree_on_outcome(
        worker.communicator(), worker.waiter(), memory.make_shared(worker, writer), worker.env().host_name());
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
  const int slots_now = shared_slots - (decision.room.third_slot_later ? 1 : 0);
  for (int slot = 0; slot < slots_now; ++slot) {
    const std::string name =
        snapshot_name(digest_of(worker.state().memory_id), writer, worker.communicator().rank(), slot);
    HF_TRY(std::unique_ptr<SharedMemory> memory,
           worker.env().create_shared_memory(name, worker.snapshot_bytes()));
    slots_.push_back(memory->bytes());
    shared_.push_back(std::move(memory));
  }
  return {};
}

Result<std::unique_ptr<SharedMemory>> SnapshotMemory::make_last_slot(Worker& worker, std::uint64_t writer) {
  const std::string name = snapshot_name(digest_of(worker.state().memory_id), writer,
                                         worker.communicator().rank(), shared_slots - 1);
  HF_TRY(std::unique_ptr<SharedMemory> memory,
         worker.env().create_shared_memory(name, worker.snapshot_bytes()));
  touch(memory->bytes(), /*threads=*/1);
  return memory;
}

std::span<std::byte> SnapshotMemory::add(std::unique_ptr<SharedMemory> slot) {
  slots_.push_back(slot->bytes());
  shared_.push_back(std::move(slot));
  return slots_.back();
}

}  // namespace holdfast
