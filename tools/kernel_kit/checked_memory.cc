#include "tools/kernel_kit/checked_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/core/random.h"

namespace holdfast::bench::kernel_kit {
namespace {

constexpr std::size_t guard_around = 4096, line = 64;  // bytes

double value_of(Values values, double uniform, std::int64_t index) {
  const double plain = 2.0 * uniform - 1.0;
  constexpr std::int64_t every = 101;
  switch (values) {
    case Values::usual:
    case Values::traced:
      return plain;
    case Values::zeros:
      return index % 3 == 0 ? -0.0 : 0.0;
    case Values::outliers:
      return index % every == 7 ? 1e3 * plain : plain;
    case Values::large:
      return 1e4 * plain;
    case Values::tiny:
      return 1e-30 * plain;
    case Values::denormal:
      return 1e-39 * plain;
  }
  return plain;
}

void put(std::byte* target, DType dtype, double value) {
  const auto copy = [target](const auto& stored) { std::memcpy(target, &stored, sizeof(stored)); };
  switch (dtype) {
    case DType::fp32:
      return copy(static_cast<float>(value));
    case DType::bf16:
      return copy(to_bfloat16(static_cast<float>(value)));
    case DType::int32:
      return copy(static_cast<std::int32_t>(value));
    case DType::fp64:
      return copy(value);
  }
}

// A target of a row may be negative, which means none; a token that is read may not.
bool is_without_target(const Operand& operand, std::int64_t index) {
  constexpr std::int64_t every = 7;
  return std::string_view(operand.name) == "targets" && index % every == 2;
}

bool has_first_content(const Operand& operand) {
  return operand.is_read() || (operand.has_gaps() && !operand.pads);
}

}  // namespace

const char* name_of(Values values) {
  switch (values) {
    case Values::usual:
      return "usual";
    case Values::zeros:
      return "zeros";
    case Values::outliers:
      return "outliers";
    case Values::large:
      return "large";
    case Values::tiny:
      return "tiny";
    case Values::denormal:
      return "denormal";
    case Values::traced:
      return "traced";
  }
  return "unknown";
}

void CheckedMemory::reserve(const void* pointer, const Operand& operand) {
  std::size_t& bytes = reserved_[pointer];
  bytes = std::max(bytes, static_cast<std::size_t>(operand.extent * operand.element_bytes));
}

std::byte* CheckedMemory::hand_out(const void* pointer, const Operand& operand) {
  ++operand_;
  if (pointer == nullptr && operand.optional) return nullptr;
  const auto own = static_cast<std::size_t>(operand.extent * operand.element_bytes);
  if (pointer != nullptr) {
    if (const auto found = places_.find(pointer); found != places_.end()) {
      Array& array = arrays_[found->second];
      array.is_written = array.is_written || operand.is_written();
      if (operand.is_written()) array.operand = operand;
      return array.memory.data() + array.begin;
    }
    places_[pointer] = arrays_.size();
  }
  Array& array = arrays_.emplace_back();
  array.operand = operand;
  array.bytes = pointer != nullptr ? reserved_[pointer] : own;
  array.is_written = operand.is_written();
  array.buffer = std::make_unique<os::FencedBuffer>(array.bytes + 2 * guard_around + line);
  array.memory = array.buffer->bytes();
  std::ranges::fill(array.memory, terms_.guard);
  array.begin = terms_.is_fenced
                    ? array.memory.size() - array.bytes
                    : guard_around + terms_.shift * static_cast<std::size_t>(operand.element_bytes) % line;
  fill(array);
  return array.memory.data() + array.begin;
}

void CheckedMemory::fill(Array& array) const {
  std::byte* const target = array.memory.data() + array.begin;
  const Operand& operand = array.operand;
  const std::span whole(target, array.bytes);
  if (operand_ <= terms_.given.size() && !terms_.given[operand_ - 1].empty()) {
    const std::span<const std::byte> given = terms_.given[operand_ - 1];
    std::ranges::copy(given.first(std::min(given.size(), whole.size())), whole.begin());
    return;
  }
  if (!has_first_content(operand)) {
    std::ranges::fill(whole, terms_.poison);
    return;
  }
  // By the place among the operands: the number of arrays before it depends on which of them are one.
  const RandomStream stream(terms_.seed, operand_);
  const auto uniform = [&](std::int64_t i) { return stream.uniform(static_cast<std::uint64_t>(i)); };
  if (operand.content == Operand::Content::words) {
    for (std::size_t i = 0; i < whole.size(); ++i)
      whole[i] = static_cast<std::byte>(uniform(static_cast<std::int64_t>(i)) * 256.0);
    return;
  }
  const std::size_t size = bytes_of(operand.dtype);
  const auto count = static_cast<std::int64_t>(array.bytes / size);
  for (std::int64_t i = 0; i < count; ++i) {
    std::byte* const place = target + static_cast<std::size_t>(i) * size;
    switch (operand.content) {
      case Operand::Content::tokens:
        put(place, DType::int32,
            is_without_target(operand, i) ? static_cast<double>(-1 - i)
                                          : uniform(i) * static_cast<double>(terms_.contents.tokens_below));
        break;
      case Operand::Content::first_keys: {
        const auto index = static_cast<std::size_t>(i);
        const bool is_known = index < terms_.contents.first_keys.size();
        put(place, DType::int32, is_known ? terms_.contents.first_keys[index] : 0);
        break;
      }
      case Operand::Content::positive:
        put(place, operand.dtype, 0.5 + 0.5 * uniform(i));
        break;
      case Operand::Content::values:
      case Operand::Content::words:
        put(place, operand.dtype, value_of(terms_.values, uniform(i), i));
        break;
    }
  }
}

void CheckedMemory::leave_gradient_digests(std::span<const OptimizerTensor> table, std::uint64_t* digests) {
  for (const OptimizerTensor& tensor : table) {
    std::vector<double> sums(static_cast<std::size_t>(core::blocks_of(tensor.count)));
    reference(SquareSum{.values = tensor.gradient,
                        .count = tensor.count,
                        .sums = sums.data(),
                        .digests = digests + tensor.first_block});
  }
}

std::vector<std::byte> CheckedMemory::follows_from_others(const Array& array) const {
  if (!left_.has_value() || std::string_view(array.operand.name) != "block_digests") return {};
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(left_->block_count));
  OptimizerDigest op = *left_;
  op.block_digests = digests.data();
  reference(op);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(digests));
  return {bytes.begin(), bytes.end()};
}

void CheckedMemory::seal() {
  for (Array& array : arrays_) array.before.assign(array.memory.begin(), array.memory.end());
}

std::string CheckedMemory::damage() const {
  for (const Array& array : arrays_) {
    for (std::size_t i = 0; i < array.memory.size(); ++i) {
      if (array.memory[i] == array.before[i]) continue;
      const auto size = static_cast<std::int64_t>(array.operand.element_bytes);
      const std::int64_t offset = static_cast<std::int64_t>(i) - static_cast<std::int64_t>(array.begin);
      if (offset < 0)
        return fmt::format("it writes {} bytes before the first element of {}", -offset, array.operand.name);
      if (i >= array.begin + array.bytes)
        return fmt::format("it writes {} bytes after the last element of {}",
                           i - array.begin - array.bytes + 1, array.operand.name);
      if (!array.is_written)
        return fmt::format("it writes element {} of {}, which the op only reads", offset / size,
                           array.operand.name);
      i = array.begin + array.bytes - 1;  // its own elements; the guard behind them is next
    }
  }
  return {};
}

}  // namespace holdfast::bench::kernel_kit
