// MemoryPlan: all memory of a run that kernels work on is named and summed before the first step, allocated
// once, and never again.
//
//   MemoryPlan plan;
//   MemoryPlan::Slot logits = plan.reserve("head.logits", MemoryClass::activations, bytes);
//   HF_TRY(MemoryArena arena, allocate_memory(device, plan));  // kernels/device.h
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

namespace holdfast::inline core {

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

// Where memory lies. On the CPU the two are the same.
enum class MemoryPlace : std::uint8_t {
  device,        // beside the processors that run the kernels; the host may not be able to touch it
  host_visible,  // the host and the kernels both read and write it: for the little that they tell each other
};

class MemoryPlan {
 public:
  struct Slot {
    std::uint64_t offset_bytes = 0;  // from the begin of what lies in this place
    std::uint64_t bytes = 0;
    MemoryPlace place = MemoryPlace::device;
  };
  struct Entry {
    std::string name;
    MemoryClass memory_class;
    Slot slot;
  };
  static constexpr std::uint64_t alignment_bytes = 64;

  Slot reserve(std::string name, MemoryClass memory_class, std::uint64_t bytes,
               MemoryPlace place = MemoryPlace::device);
  std::uint64_t total_bytes() const;
  std::uint64_t total_bytes(MemoryPlace place) const { return place_bytes_[static_cast<std::size_t>(place)]; }
  std::uint64_t total_bytes(MemoryClass memory_class) const;
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
  std::array<std::uint64_t, 2> place_bytes_ = {};  // by MemoryPlace
};

// ExitCode::does_not_fit, with the plan's table by class, when `plan`, held by each of `ranks` on this host,
// is more than the host has: the system would grant it, and kill the process when it is touched. Nothing is
// checked when `available_bytes` is not known. `device_is_host`: what lies in MemoryPlace::device takes host
// memory, too.
Result<void> check_fits(const MemoryPlan& plan, std::optional<std::uint64_t> available_bytes, int ranks,
                        bool device_is_host = true);

// Memory that knows how it is given back.
struct MemoryRelease {
  void (*release)(std::byte* base, std::uint64_t bytes) = nullptr;
  std::uint64_t bytes = 0;
  void operator()(std::byte* base) const { release(base, bytes); }
};
using OwnedMemory = std::unique_ptr<std::byte, MemoryRelease>;

// Who hands out memory, zero-filled and page-aligned. ExitCode::does_not_fit comes with a clause: why not.
using MemorySource = std::function<Result<OwnedMemory>(MemoryPlace place, std::uint64_t bytes)>;
// The system's, in either place.
Result<OwnedMemory> host_memory(MemoryPlace place, std::uint64_t bytes);
// Addresses for a planner, more than the system has memory: only what is written takes any.
Result<OwnedMemory> unbacked_memory(MemoryPlace place, std::uint64_t bytes);

// What a plan asks for, one allocation in each place. Movable.
class MemoryArena {
 public:
  // ExitCode::does_not_fit, with the plan's table by class, when the source refuses; its other errors as they
  // are.
  static Result<MemoryArena> allocate(const MemoryPlan& plan, const MemorySource& source = host_memory);

  std::span<std::byte> bytes(MemoryPlan::Slot slot) const { return {at<std::byte>(slot), slot.bytes}; }
  template <typename T>
  T* at(MemoryPlan::Slot slot) const {
    return reinterpret_cast<T*>(places_[static_cast<std::size_t>(slot.place)].get() + slot.offset_bytes);
  }

 private:
  std::array<OwnedMemory, 2> places_;  // by MemoryPlace
};

}  // namespace holdfast::inline core
