#include "checkpoint/slot_pool.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/os/resizable_memory.h"

namespace holdfast::checkpoint {

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

std::uint64_t SlotPool::unneeded_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [name, memory] : kept_) {
    if (may_go(name)) sum += memory->bytes().size();
  }
  return sum;
}

// Keeps the longest slots for the longest lengths.
void SlotPool::trim(Env& env, std::vector<std::uint64_t> lengths) {
  std::vector<std::string> names;
  for (const auto& [name, memory] : kept_) {
    if (may_go(name)) names.push_back(name);
  }
  std::ranges::stable_sort(names, std::greater(),
                           [this](const std::string& name) { return kept_.at(name)->bytes().size(); });
  std::ranges::sort(lengths, std::greater());
  for (std::size_t i = 0; i < names.size(); ++i) {
    SharedMemory& memory = *kept_.at(names[i]);
    if (i < lengths.size() && memory.bytes().size() <= lengths[i]) continue;
    auto* const resizable = dynamic_cast<ResizableSharedMemory*>(&memory);
    if (i < lengths.size() && resizable != nullptr) {
      unseal_snapshot(memory.bytes());
      if (resizable->resize(lengths[i]).ok()) continue;
    }
    static_cast<void>(env.remove_shared_memory(names[i]).ok());
    kept_.erase(names[i]);
  }
}

// Takes the shortest kept slot that is long enough, or else the longest one.
std::optional<SlotPool::Candidate> SlotPool::next_kept(std::uint64_t bytes) {
  auto best = kept_.end();
  for (auto each = kept_.begin(); each != kept_.end(); ++each) {
    if (!may_go(each->first)) continue;
    const std::uint64_t size = each->second->bytes().size();
    const std::uint64_t best_size = best == kept_.end() ? 0 : best->second->bytes().size();
    if (best_size < bytes ? size > best_size : size >= bytes && size < best_size) best = each;
  }
  if (best == kept_.end()) return std::nullopt;
  Candidate candidate{best->first, std::move(best->second)};
  kept_.erase(best);
  return candidate;
}

// Skips slots with the names of this epoch: their processes live, and hold each as soon as it is made.
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

// Removes slots that dead processes left until so many bytes are free, or none of them are left.
void SlotPool::free_of_the_dead(Env& env, std::uint64_t bytes) {
  for (std::uint64_t freed = 0; freed < bytes;) {
    const std::optional<Candidate> candidate = next_of_the_dead(env);
    if (!candidate.has_value() || !env.remove_shared_memory(candidate->name).ok()) return;
    freed += candidate->memory->bytes().size();
  }
}

std::unique_ptr<SharedMemory> SlotPool::adopt(Env& env, FaultPoints& faults, Candidate candidate,
                                              const std::string& name, std::uint64_t bytes) {
  auto* const memory = dynamic_cast<ResizableSharedMemory*>(candidate.memory.get());
  if (memory == nullptr) return nullptr;
  HF_FAULT_POINT(faults, "slot.before_unseal");
  unseal_snapshot(memory->bytes());
  HF_FAULT_POINT(faults, "slot.before_rename");
  if (!env.rename(env.shared_memory_path(candidate.name), env.shared_memory_path(name)).ok()) return nullptr;
  const std::uint64_t before = memory->bytes().size();
  free_of_the_dead(env, bytes - std::min(before, bytes));
  HF_FAULT_POINT(faults, "slot.before_resize");
  if (!memory->resize(bytes).ok()) {
    static_cast<void>(env.remove_shared_memory(name).ok());
    return nullptr;
  }
  HF_FAULT_POINT(faults, "slot.after_resize");
  memory->hold(SharedMemory::Hold::shared);
  return std::move(candidate.memory);
}

Result<std::unique_ptr<SharedMemory>> SlotPool::make(Env& env, FaultPoints& faults, const std::string& name,
                                                     std::uint64_t bytes) {
  while (std::optional<Candidate> candidate = next_kept(bytes)) {
    if (std::unique_ptr<SharedMemory> made = adopt(env, faults, std::move(*candidate), name, bytes))
      return made;
  }
  if (std::optional<Candidate> candidate = next_of_the_dead(env)) {
    if (std::unique_ptr<SharedMemory> made = adopt(env, faults, std::move(*candidate), name, bytes))
      return made;
  }
  free_of_the_dead(env, bytes);
  HF_TRY(std::unique_ptr<SharedMemory> memory, env.create_shared_memory(name, bytes));
  memory->hold(SharedMemory::Hold::shared);
  return memory;
}

}  // namespace holdfast::checkpoint
