// Memory for the operands of ops in benchmarks: filled with small values of both signs, in huge pages where
// the system has them, as the trainer's memory is. An op that is run again and again on it stays finite.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/optimizer.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/tensor.h"

namespace holdfast {

class OpMemory {
 public:
  enum class Mode {
    real,
    shapes_only,  // hands out addresses that are never to be used
  };
  explicit OpMemory(Mode mode = Mode::real) : mode_(mode) {}
  // Memory of another device that the host reaches too, at least 64-byte aligned; null = there is none left.
  // It is the caller's, who frees it.
  using Allocate = std::function<void*(std::uint64_t bytes)>;
  explicit OpMemory(Allocate allocate) : mode_(Mode::real), allocate_(std::move(allocate)) {}

  void* values(std::int64_t count, DType dtype);
  float* floats(std::int64_t count) { return static_cast<float*>(values(count, DType::fp32)); }
  float* positive_floats(std::int64_t count);
  BFloat16* bfloat16s(std::int64_t count) { return static_cast<BFloat16*>(values(count, DType::bf16)); }
  double* doubles(std::int64_t count);
  std::int32_t* tokens(std::int64_t count, std::int64_t vocabulary);

  // Tables are real in either mode, because costs are read from them.
  const AdamWTensor* table(std::vector<AdamWTensor> tensors);

  // What went wrong when memory was handed out, if anything; ops must not run then.
  const Result<void>& outcome() const { return outcome_; }

 private:
  std::byte* allocate(std::int64_t count, std::size_t element_bytes);

  Mode mode_;
  Allocate allocate_;  // empty = the heap
  std::uintptr_t handed_out_ = 0;
  std::vector<MemoryArena> arenas_;
  std::vector<std::vector<AdamWTensor>> tables_;
  Result<void> outcome_;
};

}  // namespace holdfast
