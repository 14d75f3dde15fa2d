#include "tools/kernel_kit/bench_memory.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "kernels/visit_op.h"

namespace holdfast::bench::kernel_kit {
namespace {

bool has_numbers(const Operand& operand) {
  return operand.content == Operand::Content::values || operand.content == Operand::Content::positive;
}

template <typename T>
void store(std::byte* target, T value) {
  std::memcpy(target, &value, sizeof(value));
}

}  // namespace

Result<std::unique_ptr<BenchMemory>> BenchMemory::make(const OpSample& sample) {
  std::unique_ptr<BenchMemory> memory(new BenchMemory(sample));
  HF_TRY_VOID(Result<void>(memory->memory_.outcome()));
  return memory;
}

BenchMemory::BenchMemory(const OpSample& sample)
    : tokens_below_(sample.contents.tokens_below), call_(sample.make(memory_)) {
  if (!memory_.outcome().ok()) return;
  visit_op(call_.id(), call_.arguments(), [&]<typename Op>(const Op& bound) {
    Op op = bound;
    if constexpr (requires { op.token_count; }) {
      if (op.token_count == 0) op.token_count = tokens_below_;
    }
    const auto add = [this](const auto& pointer, const Operand& operand) { this->add(pointer, operand); };
    Op::visit_operands(op, add);
    measure::visit_damage(op, add);
    if constexpr (requires { op.tensors; }) {
      for (const AdamWTensor& tensor : std::span(op.tensors, static_cast<std::size_t>(op.tensor_count)))
        Op::visit_tensor(op, tensor, add);
    }
  });
}

void BenchMemory::add(const void* pointer, const Operand& operand) {
  const auto bytes = static_cast<std::size_t>(operand.extent * operand.element_bytes);
  if (pointer == nullptr || bytes == 0) return;
  auto* const data = static_cast<std::byte*>(const_cast<void*>(pointer));
  auto array = std::ranges::find(arrays_, data, &Array::data);
  if (array == arrays_.end())
    array = arrays_.insert(array, {.operand = operand, .data = data, .bytes = bytes});
  array->bytes = std::max(array->bytes, bytes);
  array->is_read = array->is_read || operand.is_read();
  array->is_written = array->is_written || operand.is_written();
  if (operand.is_written()) array->operand = operand;
}

void BenchMemory::put(const Array& array, std::size_t index, QuickRandom& random) const {
  std::byte* const target = array.data + index * bytes_of(array.operand.dtype);
  const double uniform = random.uniform();
  const double value =
      array.operand.content == Operand::Content::positive ? 0.5 + 0.5 * uniform : 2.0 * uniform - 1.0;
  switch (array.operand.dtype) {
    case DType::fp32:
      return store(target, static_cast<float>(value));
    case DType::bf16:
      return store(target, to_bfloat16(static_cast<float>(value)));
    case DType::fp64:
      return store(target, value);
    case DType::int32:
      return store(target, static_cast<std::int32_t>(uniform * static_cast<double>(tokens_below_)));
  }
}

void BenchMemory::renew(QuickRandom& random) {
  for (const Array& array : arrays_) {
    const bool has_tokens = array.operand.content == Operand::Content::tokens;
    if (has_numbers(array.operand) || has_tokens) {
      const std::size_t count = array.bytes / bytes_of(array.operand.dtype);
      for (std::size_t i = 0; i < count; ++i) put(array, i, random);
    } else if (array.operand.content == Operand::Content::words) {
      for (std::size_t i = 0; i < array.bytes; i += sizeof(std::uint64_t)) {
        const std::uint64_t word = random.next();
        std::memcpy(array.data + i, &word, std::min(sizeof(word), array.bytes - i));
      }
    }
  }
}

void BenchMemory::touch(QuickRandom& random) {
  for (const Array& array : arrays_) {
    if (!array.is_read) continue;
    if (has_numbers(array.operand))
      put(array, random.below(array.bytes / bytes_of(array.operand.dtype)), random);
    else if (array.operand.content == Operand::Content::words)
      array.data[random.below(array.bytes)] = static_cast<std::byte>(random.next());
  }
}

void BenchMemory::copy_from(const BenchMemory& other) {
  for (std::size_t i = 0; i < arrays_.size(); ++i)
    std::memcpy(arrays_[i].data, other.arrays_[i].data, arrays_[i].bytes);
}

void BenchMemory::flush() const {
  constexpr std::size_t line = 64;
  for (const Array& array : arrays_) {
    for (std::size_t i = 0; i < array.bytes; i += line) __builtin_ia32_clflush(array.data + i);
    __builtin_ia32_clflush(array.data + array.bytes - 1);
  }
  __builtin_ia32_mfence();
}

}  // namespace holdfast::bench::kernel_kit
