#include "runtime/measure/op_memory.h"

#include <algorithm>
#include <array>

#include "runtime/core/random.h"
#include "runtime/device/host_access.h"

namespace holdfast::measure {
namespace {

constexpr std::size_t pattern_count = 4096;

// Returns values in [-1, 1), cheaply: the same few thousand values over and over.
std::array<float, pattern_count> pattern(float lowest) {
  std::array<float, pattern_count> values;
  const RandomStream stream(0, 0);
  for (std::size_t i = 0; i < pattern_count; ++i) {
    values[i] = lowest + (1.0F - lowest) * static_cast<float>(stream.uniform(i));
  }
  return values;
}

}  // namespace

std::byte* OpMemory::allocate(std::int64_t count, std::size_t element_bytes) {
  // Different ones, because operands at the same address are one operand that is updated in place.
  if (mode_ == Mode::shapes_only)
    return reinterpret_cast<std::byte*>(++handed_out_ * MemoryPlan::alignment_bytes);
  const std::uint64_t bytes = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(count) * element_bytes);
  MemoryPlan plan;
  const MemoryPlan::Slot slot = plan.reserve("operand", MemoryClass::activations, bytes);
  Result<MemoryArena> arena =
      device_ == nullptr ? MemoryArena::allocate(plan) : allocate_memory(*device_, plan);
  if (!arena.ok()) {
    outcome_ = arena.error();
    return nullptr;
  }
  arenas_.push_back(std::move(arena).value());
  return arenas_.back().at<std::byte>(slot);
}

void OpMemory::write(std::byte* target, std::span<const std::byte> source) {
  if (device_ == nullptr) {
    std::ranges::copy(source, target);
  } else {
    write_memory(*device_, target, source);
  }
}

template <typename T>
std::byte* OpMemory::filled(std::int64_t count, std::span<const T> pattern) {
  std::byte* memory = allocate(count, sizeof(T));
  if (mode_ == Mode::shapes_only || memory == nullptr) return memory;
  const std::span whole(memory, static_cast<std::size_t>(count) * sizeof(T));
  const std::span<const std::byte> part = std::as_bytes(pattern);
  if (device_ != nullptr) {
    fill_memory(*device_, whole, part);
    return memory;
  }
  for (std::size_t begin = 0; begin < whole.size(); begin += part.size()) {
    std::ranges::copy(part.first(std::min(part.size(), whole.size() - begin)), memory + begin);
  }
  return memory;
}

void* OpMemory::values(std::int64_t count, DType dtype) {
  const std::array<float, pattern_count> source = pattern(-1.0F);
  if (dtype == DType::fp32) return filled<float>(count, source);
  std::array<BFloat16, pattern_count> halves;
  std::ranges::transform(source, halves.begin(), to_bfloat16);
  return filled<BFloat16>(count, halves);
}

float* OpMemory::positive_floats(std::int64_t count) {
  return reinterpret_cast<float*>(filled<float>(count, pattern(0.5F)));
}

const AdamWTensor* OpMemory::table(std::vector<AdamWTensor> tensors) {
  if (device_ == nullptr || device_->host_sees_memory())
    return tables_.emplace_back(std::move(tensors)).data();
  std::byte* memory = allocate(static_cast<std::int64_t>(tensors.size()), sizeof(AdamWTensor));
  if (memory != nullptr) write(memory, std::as_bytes(std::span(tensors)));
  return reinterpret_cast<AdamWTensor*>(memory);
}

double* OpMemory::doubles(std::int64_t count) {
  return reinterpret_cast<double*>(allocate(count, sizeof(double)));
}

std::int32_t* OpMemory::integers(const std::vector<std::int32_t>& content) {
  std::byte* memory = allocate(static_cast<std::int64_t>(content.size()), sizeof(std::int32_t));
  if (mode_ == Mode::real && memory != nullptr) write(memory, std::as_bytes(std::span(content)));
  return reinterpret_cast<std::int32_t*>(memory);
}

std::int32_t* OpMemory::tokens(std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens(mode_ == Mode::real ? static_cast<std::size_t>(count) : 1);
  const RandomStream stream(0, 1);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(stream.uniform(i) * static_cast<double>(vocabulary));
  return integers(tokens);
}

}  // namespace holdfast::measure
