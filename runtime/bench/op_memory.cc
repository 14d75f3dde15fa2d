#include "runtime/bench/op_memory.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/core/random.h"

namespace holdfast {
namespace {

constexpr std::size_t pattern_count = 4096;

// In [-1, 1), cheap: the same few thousand values over and over.
std::array<float, pattern_count> pattern(float lowest) {
  std::array<float, pattern_count> values;
  const RandomStream stream(0, 0);
  for (std::size_t i = 0; i < pattern_count; ++i) {
    values[i] = lowest + (1.0F - lowest) * static_cast<float>(stream.uniform(i));
  }
  return values;
}

template <typename T>
void repeat(const std::array<T, pattern_count>& values, T* target, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(pattern_count)) {
    std::copy_n(values.begin(), std::min<std::int64_t>(pattern_count, count - i), target + i);
  }
}

}  // namespace

std::byte* OpMemory::allocate(std::int64_t count, std::size_t element_bytes) {
  // Different ones, because operands at the same address are one operand that is updated in place.
  if (mode_ == Mode::shapes_only)
    return reinterpret_cast<std::byte*>(++handed_out_ * MemoryPlan::alignment_bytes);
  const std::uint64_t bytes = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(count) * element_bytes);
  if (allocate_) {
    void* memory = allocate_(bytes);
    if (memory == nullptr)
      outcome_ = fail(ExitCode::does_not_fit, "no memory for an operand of {} bytes", bytes);
    return static_cast<std::byte*>(memory);
  }
  MemoryPlan plan;
  const MemoryPlan::Slot slot = plan.reserve("operand", MemoryClass::activations, bytes);
  Result<MemoryArena> arena = MemoryArena::allocate(plan);
  if (!arena.ok()) {
    outcome_ = arena.error();
    return nullptr;
  }
  arenas_.push_back(std::move(arena).value());
  return arenas_.back().at<std::byte>(slot);
}

void* OpMemory::values(std::int64_t count, DType dtype) {
  std::byte* memory = allocate(count, bytes_of(dtype));
  if (mode_ == Mode::shapes_only || memory == nullptr) return memory;
  const std::array<float, pattern_count> source = pattern(-1.0F);
  if (dtype == DType::fp32) {
    repeat(source, reinterpret_cast<float*>(memory), count);
  } else {
    std::array<BFloat16, pattern_count> halves;
    std::ranges::transform(source, halves.begin(), to_bfloat16);
    repeat(halves, reinterpret_cast<BFloat16*>(memory), count);
  }
  return memory;
}

float* OpMemory::positive_floats(std::int64_t count) {
  auto* memory = reinterpret_cast<float*>(allocate(count, sizeof(float)));
  if (mode_ == Mode::real && memory != nullptr) repeat(pattern(0.5F), memory, count);
  return memory;
}

const AdamWTensor* OpMemory::table(std::vector<AdamWTensor> tensors) {
  if (!allocate_) return tables_.emplace_back(std::move(tensors)).data();
  auto* memory = reinterpret_cast<AdamWTensor*>(
      allocate(static_cast<std::int64_t>(tensors.size()), sizeof(AdamWTensor)));
  if (memory != nullptr) std::ranges::copy(tensors, memory);
  return memory;
}

double* OpMemory::doubles(std::int64_t count) {
  return reinterpret_cast<double*>(allocate(count, sizeof(double)));
}

std::int32_t* OpMemory::tokens(std::int64_t count, std::int64_t vocabulary) {
  auto* memory = reinterpret_cast<std::int32_t*>(allocate(count, sizeof(std::int32_t)));
  if (mode_ == Mode::shapes_only || memory == nullptr) return memory;
  const RandomStream stream(0, 1);
  for (std::int64_t i = 0; i < count; ++i) {
    const double unit = stream.uniform(static_cast<std::uint64_t>(i));
    memory[i] = static_cast<std::int32_t>(unit * static_cast<double>(vocabulary));
  }
  return memory;
}

}  // namespace holdfast
