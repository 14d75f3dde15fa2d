#include "tools/kernel_kit/bench_memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "kernels/visit_op.h"

namespace holdfast::bench::kernel_kit {
namespace {

// A call changes so many elements in a row, in so many places at least, and one of so many elements of a large array.
constexpr std::size_t run_elements = 16, least_runs = 8, elements_per_scrambled = 64;

template <typename T>
void store(std::byte* target, T value) {
  std::memcpy(target, &value, sizeof(value));
}

}  // namespace

Result<std::unique_ptr<BenchMemory>> BenchMemory::make(const OpSample& sample, Given given) {
  std::unique_ptr<BenchMemory> memory(new BenchMemory(sample, given));
  HF_TRY_VOID(Result<void>(memory->memory_.outcome()));
  return memory;
}

BenchMemory::BenchMemory(const OpSample& sample, Given given)
    : tokens_below_(sample.contents.tokens_below), given_(given), call_(sample.make(memory_)) {
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
      for (const OptimizerTensor& tensor : std::span(op.tensors, static_cast<std::size_t>(op.tensor_count)))
        Op::visit_tensor(op, tensor, add);
    }
  });
}

void BenchMemory::add(const void* pointer, const Operand& operand) {
  const auto bytes = static_cast<std::size_t>(operand.extent * operand.element_bytes);
  const std::size_t place = operands_++;
  if (pointer == nullptr || bytes == 0) return;
  auto* const data = static_cast<std::byte*>(const_cast<void*>(pointer));
  auto array = std::ranges::find(arrays_, data, &Array::data);
  if (array == arrays_.end()) {
    array = arrays_.insert(array, {.operand = operand, .data = data, .bytes = bytes});
    if (place < given_.size()) array->given = given_[place];
  }
  array->bytes = std::max(array->bytes, bytes);
  array->is_read = array->is_read || operand.is_read();
  array->is_written = array->is_written || operand.is_written();
  if (operand.is_written()) array->operand = operand;
}

void BenchMemory::put(const Array& array, std::size_t index, QuickRandom& random) const {
  const std::size_t size = bytes_of(array.operand.dtype);
  std::byte* const target = array.data + index * size;
  if (!array.given.empty()) {  // another number of the array, which is as large as they are
    std::memcpy(target, array.given.data() + random.below(array.given.size() / size) * size, size);
    return;
  }
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

void BenchMemory::renew(const Array& array, QuickRandom& random) const {
  if (!array.given.empty()) {
    std::memcpy(array.data, array.given.data(), std::min(array.bytes, array.given.size()));
  } else if (array.operand.content == Operand::Content::words) {
    for (std::size_t i = 0; i < array.bytes; i += sizeof(std::uint64_t)) {
      const std::uint64_t word = random.next();
      std::memcpy(array.data + i, &word, std::min(sizeof(word), array.bytes - i));
    }
  } else if (array.operand.content != Operand::Content::first_keys) {
    const std::size_t count = array.bytes / bytes_of(array.operand.dtype);
    for (std::size_t i = 0; i < count; ++i) put(array, i, random);
  }
}

void BenchMemory::renew(QuickRandom& random) {
  scrambled_ = {};
  for (const Array& array : arrays_) renew(array, random);
  if (!given_.empty()) touch(random);
}

void BenchMemory::renew_updated(QuickRandom& random) {
  for (const Array& array : arrays_) {
    if (array.is_read && array.is_written) renew(array, random);
  }
}

// An output and an input of the same size change at the same places, so that what is right at a place that was scrambled is
// not what was right there before.
void BenchMemory::touch(QuickRandom& random) {
  scrambled_ = {};
  std::array<double, 32> common = {};
  for (double& each : common) each = random.uniform();
  for (std::size_t index = 0; index < arrays_.size(); ++index) {
    if (arrays_[index].operand.content != Operand::Content::first_keys) scramble(index, common, random);
  }
}

void BenchMemory::scramble(std::size_t index, std::span<const double> common, QuickRandom& random) {
  const Array& array = arrays_[index];
  const bool is_words = array.operand.content == Operand::Content::words;
  const std::size_t size = is_words ? 1 : bytes_of(array.operand.dtype), count = array.bytes / size;
  std::vector<std::size_t> begins(std::max(least_runs, count / elements_per_scrambled / run_elements));
  for (std::size_t run = 0; run < begins.size(); ++run) {
    const double place = run < common.size() ? common[run] : random.uniform();
    begins[run] = std::min(static_cast<std::size_t>(place * static_cast<double>(count)), count - 1);
    if (run < common.size()) remember(index, begins[run] * size, size);
  }
  for (const std::size_t begin : begins) {
    for (std::size_t i = begin; i < std::min(begin + run_elements, count); ++i) {
      if (is_words)
        array.data[i] = static_cast<std::byte>(random.next());
      else
        put(array, i, random);
    }
  }
}

// Between rows an op may leave what is there.
void BenchMemory::remember(std::size_t index, std::size_t byte, std::size_t count) {
  const Array& array = arrays_[index];
  if (!array.is_written || array.operand.access == Operand::Access::scratch) return;
  const auto element = static_cast<std::int64_t>(byte / count);
  if (array.operand.has_gaps() && element % array.operand.row_stride >= array.operand.row_columns) return;
  scrambled_.places.push_back({.array = index, .byte = byte, .count = count});
  const auto content = array.content().subspan(byte, count);
  scrambled_.before.insert(scrambled_.before.end(), content.begin(), content.end());
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
