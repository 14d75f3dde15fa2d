#include "runtime/measure/op_memory.h"

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

std::vector<std::int32_t> tokens(std::int64_t count, std::int64_t below) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  const RandomStream stream(0, 1);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(stream.uniform(i) * static_cast<double>(below));
  return tokens;
}

}  // namespace

std::byte* OpMemory::allocate(const char* name, std::int64_t bytes) {
  MemoryPlan plan;
  const MemoryPlan::Slot slot = plan.reserve(name, MemoryClass::activations,
                                             static_cast<std::uint64_t>(std::max<std::int64_t>(1, bytes)));
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

std::byte* OpMemory::filled(const char* name, std::int64_t bytes, std::span<const std::byte> pattern) {
  std::byte* memory = allocate(name, bytes);
  if (memory == nullptr || bytes == 0) return memory;
  HF_CHECK(!pattern.empty(), "nothing says what {} holds", name);
  const std::span whole(memory, static_cast<std::size_t>(bytes));
  if (device_ != nullptr) {
    fill_memory(*device_, whole, pattern);
    return memory;
  }
  for (std::size_t begin = 0; begin < whole.size(); begin += pattern.size()) {
    std::ranges::copy(pattern.first(std::min(pattern.size(), whole.size() - begin)), memory + begin);
  }
  return memory;
}

std::byte* OpMemory::filled(std::int64_t bytes, const Operand& operand, const OperandContents& contents) {
  if (operand.content == Operand::Content::tokens) {
    const std::vector<std::int32_t> numbers = tokens(operand.extent, contents.tokens_below);
    return filled(operand.name, bytes, std::as_bytes(std::span(numbers)));
  }
  if (operand.content == Operand::Content::first_keys)
    return filled(operand.name, bytes, std::as_bytes(std::span(contents.first_keys)));
  const auto values = pattern(operand.content == Operand::Content::positive ? 0.5F : -1.0F);
  if (operand.dtype != DType::bf16) return filled(operand.name, bytes, std::as_bytes(std::span(values)));
  std::array<BFloat16, pattern_count> halves;
  std::ranges::transform(values, halves.begin(), to_bfloat16);
  return filled(operand.name, bytes, std::as_bytes(std::span(halves)));
}

const OptimizerTensor* OpMemory::table(std::vector<OptimizerTensor> tensors) {
  if (device_ == nullptr || device_->host_sees_memory())
    return tables_.emplace_back(std::move(tensors)).data();
  std::byte* memory =
      allocate("tensors", static_cast<std::int64_t>(tensors.size() * sizeof(OptimizerTensor)));
  if (memory != nullptr) write(memory, std::as_bytes(std::span(tensors)));
  return reinterpret_cast<OptimizerTensor*>(memory);
}

}  // namespace holdfast::measure
