// MemoryPlan: all device memory of a run is named and summed before the first step, allocated once, and never
// again.
//
//   MemoryPlan plan;
//   MemoryPlan::Slot logits = plan.reserve("head.logits", MemoryClass::activations, bytes);
//   HF_TRY(MemoryArena arena, MemoryArena::allocate(plan));
//   float* data = arena.at<float>(logits);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast {

enum class MemoryClass : std::uint8_t {
  weights,
  gradients,
  optimizer,
  activations,
  workspace,
  communication,
  data
};
std::string_view name_of(MemoryClass memory_class);

class MemoryPlan {
 public:
  struct Slot {
    std::uint64_t offset_bytes = 0;
    std::uint64_t bytes = 0;
  };
  struct Entry {
    std::string name;
    MemoryClass memory_class;
    Slot slot;
  };
  static constexpr std::uint64_t alignment_bytes = 64;

  Slot reserve(std::string name, MemoryClass memory_class, std::uint64_t bytes);
  std::uint64_t total_bytes() const { return total_bytes_; }
  std::uint64_t total_bytes(MemoryClass memory_class) const;
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
  std::uint64_t total_bytes_ = 0;
};

// ExitCode::does_not_fit, with the plan's table by class, when `plan`, held by each of `ranks` on this host,
// is more than the host has: the system would grant it, and kill the process when it is touched. Nothing is
// checked when `available_bytes` is not known.
Result<void> check_fits(const MemoryPlan& plan, std::optional<std::uint64_t> available_bytes, int ranks);

// The one allocation. Zero-filled, page-aligned, movable, freed by the destructor.
class MemoryArena {
 public:
  // ExitCode::does_not_fit, with the plan's table by class, when the system refuses.
  static Result<MemoryArena> allocate(const MemoryPlan& plan);
  MemoryArena() = default;
  MemoryArena(MemoryArena&& other) noexcept;
  MemoryArena& operator=(MemoryArena&& other) noexcept;
  ~MemoryArena();

  std::span<std::byte> bytes(MemoryPlan::Slot slot) const { return {base_ + slot.offset_bytes, slot.bytes}; }
  template <typename T>
  T* at(MemoryPlan::Slot slot) const {
    return reinterpret_cast<T*>(base_ + slot.offset_bytes);
  }

 private:
  std::byte* base_ = nullptr;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace holdfast
