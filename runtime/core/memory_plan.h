// MemoryPlan: all memory of a run that kernels work on. It is named and summed before the first step,
// allocated once, and never again.
//
//   MemoryPlan plan;
//   MemoryPlan::Slot logits = plan.reserve("head.logits", MemoryClass::activations, bytes);
//   HF_TRY(MemoryArena arena, allocate_memory(device, plan));  // runtime/device/device.h
//   float* data = arena.at<float>(logits);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::core {

enum class MemoryClass : std::uint8_t {
  weights,
  gradients,
  optimizer,
  activations,
  workspace,
  communication,
  data,
  snapshot
};
std::string_view name_of(MemoryClass memory_class);

// Memory space of an allocation. On the CPU the two are the same.
enum class MemoryKind : std::uint8_t {
  device,        // local to the processors that run the kernels; the host may not be able to access it
  host_visible,  // the host and the kernels both read and write it: for the small data that they share
};

class MemoryPlan {
 public:
  struct Slot {
    std::uint64_t offset_bytes = 0;  // from the beginning of this place
    std::uint64_t bytes = 0;
    MemoryKind kind = MemoryKind::device;
  };
  struct Entry {
    std::string name;
    MemoryClass memory_class;
    Slot slot;
  };
  static constexpr std::uint64_t alignment_bytes = 64;

  Slot reserve(std::string name, MemoryClass memory_class, std::uint64_t bytes,
               MemoryKind kind = MemoryKind::device);
  std::uint64_t total_bytes() const;
  std::uint64_t total_bytes(MemoryKind kind) const { return bytes_by_kind_[static_cast<std::size_t>(kind)]; }
  std::uint64_t total_bytes(MemoryClass memory_class) const;
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
  std::array<std::uint64_t, 2> bytes_by_kind_ = {};  // by MemoryKind
};

// Returns ExitCode::does_not_fit, with the plan's table by class, when `plan`, held by each of `ranks` on
// this host, is more than the host has: the system would grant it, and kill the process when it is touched.
// Nothing is checked when `available_bytes` is unknown. `device_is_host`: memory in MemoryKind::device takes
// host memory, too.
Result<void> check_fits(const MemoryPlan& plan, std::optional<std::uint64_t> available_bytes, int ranks,
                        bool device_is_host = true);

// Frees memory in the way that it needs.
struct MemoryRelease {
  void (*release)(std::byte* base, std::uint64_t bytes) = nullptr;
  std::uint64_t bytes = 0;
  void operator()(std::byte* base) const { release(base, bytes); }
};
using OwnedMemory = std::unique_ptr<std::byte, MemoryRelease>;

// Allocates memory, zero-filled and page-aligned. ExitCode::does_not_fit comes with a clause that gives the
// reason.
using MemorySource = std::function<Result<OwnedMemory>(MemoryKind kind, std::uint64_t bytes)>;
// Allocates host memory, for either place.
Result<OwnedMemory> host_memory(MemoryKind kind, std::uint64_t bytes);
// Allocates addresses for a planner, even more than the system has memory: only written pages take any.
Result<OwnedMemory> unbacked_memory(MemoryKind kind, std::uint64_t bytes);

// Holds the memory of a plan, one allocation in each place. Movable.
class MemoryArena {
 public:
  // Allocates the memory. ExitCode::does_not_fit, with the plan's table by class, when the source refuses;
  // its other errors are passed on.
  static Result<MemoryArena> allocate(const MemoryPlan& plan, const MemorySource& source = host_memory);

  std::span<std::byte> bytes(MemoryPlan::Slot slot) const { return {at<std::byte>(slot), slot.bytes}; }
  template <typename T>
  T* at(MemoryPlan::Slot slot) const {
    return reinterpret_cast<T*>(places_[static_cast<std::size_t>(slot.kind)].get() + slot.offset_bytes);
  }

 private:
  std::array<OwnedMemory, 2> places_;  // by MemoryKind
};

}  // namespace holdfast::core
