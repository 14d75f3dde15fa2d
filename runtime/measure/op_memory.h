// Memory for the operands of ops that are measured alone: filled with small values of both signs, in huge
// pages where the system has them, as the trainer's memory is. An op that is run again and again on it stays
// finite.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/optimizer.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/tensor.h"
#include "runtime/device/device.h"

namespace holdfast::measure {

class OpMemory {
 public:
  enum class Mode {
    real,
    shapes_only,  // hands out addresses that are never to be used
  };
  explicit OpMemory(Mode mode = Mode::real) : mode_(mode) {}
  // Memory of `device`, which need not outlive it. Launches copies there, and waits for them.
  explicit OpMemory(Device& device) : mode_(Mode::real), device_(&device) {}

  void* values(std::int64_t count, DType dtype);
  float* floats(std::int64_t count) { return static_cast<float*>(values(count, DType::fp32)); }
  float* positive_floats(std::int64_t count);
  BFloat16* bfloat16s(std::int64_t count) { return static_cast<BFloat16*>(values(count, DType::bf16)); }
  double* doubles(std::int64_t count);
  std::int32_t* tokens(std::int64_t count, std::int64_t vocabulary);
  std::int32_t* integers(const std::vector<std::int32_t>& content);

  // Returns the table in the host's memory in either mode, because costs are read from it; on a device that
  // the host does not see, in the device's.
  const AdamWTensor* table(std::vector<AdamWTensor> tensors);

  // Returns the error of handing out memory, if there was any; ops must not run then.
  const Result<void>& outcome() const { return outcome_; }

 private:
  std::byte* allocate(std::int64_t count, std::size_t element_bytes);
  // Memory of so many elements, which holds `pattern` over and over.
  template <typename T>
  std::byte* filled(std::int64_t count, std::span<const T> pattern);
  void write(std::byte* target, std::span<const std::byte> source);

  Mode mode_;
  Device* device_ = nullptr;  // null = the heap
  std::uintptr_t handed_out_ = 0;
  std::vector<MemoryArena> arenas_;
  std::vector<std::vector<AdamWTensor>> tables_;
  Result<void> outcome_;
};

}  // namespace holdfast::measure
