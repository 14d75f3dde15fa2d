#include "checkpoint/slot_pool.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/core/resizable_memory.h"

namespace holdfast {

void SlotPool::begin(Env& env, const Digest& run, std::uint64_t writer,
                     const std::optional<SnapshotStep>& resumed) {
  run_ = run;
  writer_ = writer;
  needed_ = needed_snapshots(env, run, resumed);
}

void SlotPool::keep(const std::string& name, std::unique_ptr<SharedMemory> memory) {
  kept_.insert_or_assign(name, std::move(memory));
}

void SlotPool::forget_unneeded() {
  std::erase_if(kept_, [this](const auto& kept) { return may_go(kept.first); });
}

std::optional<SlotPool::Candidate> SlotPool::next_kept() {
  for (auto& [name, memory] : kept_) {
    if (!may_go(name)) continue;
    Candidate candidate{name, std::move(memory)};
    kept_.erase(candidate.name);
    return candidate;
  }
  return std::nullopt;
}

// Those of this epoch have its names: their processes live, and hold them as soon as they are made.
std::optional<SlotPool::Candidate> SlotPool::next_of_the_dead(Env& env) {
  const std::string own = writer_prefix(run_, writer_);
  for (const std::string& name : snapshot_names(env, run_)) {
    if (name.starts_with(own) || kept_.contains(name) || !may_go(name)) continue;
    Result<std::unique_ptr<SharedMemory>> memory = env.open_shared_memory(name);
    if (!memory.ok() || !(*memory)->hold(SharedMemory::Hold::alone)) continue;
    return Candidate{name, std::move(memory).value()};
  }
  return std::nullopt;
}

std::optional<SlotPool::Made> SlotPool::adopt(Env& env, FaultPoints& faults, Candidate candidate,
                                              const std::string& name, std::uint64_t bytes, bool was_mapped) {
  auto* const memory = dynamic_cast<ResizableSharedMemory*>(candidate.memory.get());
  if (memory == nullptr) return std::nullopt;
  HF_FAULT_POINT(faults, "slot.before_unseal");
  unseal_snapshot(memory->bytes());
  HF_FAULT_POINT(faults, "slot.before_rename");
  if (!env.rename(path_of_slot(candidate.name), path_of_slot(name)).ok()) return std::nullopt;
  HF_FAULT_POINT(faults, "slot.before_resize");
  const std::uint64_t before = memory->bytes().size();
  if (!memory->resize(bytes).ok()) {
    static_cast<void>(env.remove_shared_memory(name).ok());
    return std::nullopt;
  }
  HF_FAULT_POINT(faults, "slot.after_resize");
  memory->hold(SharedMemory::Hold::shared);
  return Made{.memory = std::move(candidate.memory),
              .mapped_bytes = was_mapped ? std::min(before, bytes) : 0};
}

Result<SlotPool::Made> SlotPool::make(Env& env, FaultPoints& faults, const std::string& name,
                                      std::uint64_t bytes) {
  while (std::optional<Candidate> candidate = next_kept()) {
    if (std::optional<Made> made = adopt(env, faults, std::move(*candidate), name, bytes, true))
      return std::move(*made);
  }
  if (std::optional<Candidate> candidate = next_of_the_dead(env)) {
    if (std::optional<Made> made = adopt(env, faults, std::move(*candidate), name, bytes, false))
      return std::move(*made);
  }
  HF_TRY(std::unique_ptr<SharedMemory> memory, env.create_shared_memory(name, bytes));
  memory->hold(SharedMemory::Hold::shared);
  return Made{.memory = std::move(memory), .mapped_bytes = 0};
}

}  // namespace holdfast
