#include "runtime/core/block_digest.h"

#include <array>
#include <bit>

#include "runtime/core/check.h"

namespace holdfast::core {
namespace {

constexpr std::array<std::uint32_t, block_elements> element_weights = [] {
  std::array<std::uint32_t, block_elements> weights{};
  std::uint32_t power = 1;
  for (std::uint32_t& weight : weights) {
    weight = power;
    power *= digest_generator;
  }
  return weights;
}();

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}
std::uint32_t bits_of(BFloat16 value) {
  return std::uint32_t{value.bits} << 16;
}

// Returns the sum over the elements of one array. A loop that compilers make vectors of.
template <typename Element>
std::uint64_t array_digest(const Element* values, std::size_t count) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += std::uint64_t{element_weights[i]} * bits_of(values[i]);
  return sum;
}

}  // namespace

std::uint64_t state_digest(const float* weight, const void* moment1, const void* moment2, std::int64_t count,
                           DType moments, const float* ema) {
  HF_CHECK(count >= 0 && static_cast<std::uint64_t>(count) <= block_elements);
  const auto elements = static_cast<std::size_t>(count);
  const auto of_moment = [&](const void* values) {
    if (values == nullptr) return std::uint64_t{0};
    return moments == DType::bf16 ? array_digest(static_cast<const BFloat16*>(values), elements)
                                  : array_digest(static_cast<const float*>(values), elements);
  };
  return array_digest(weight, elements) + digest_of_moment1 * of_moment(moment1) +
         digest_of_moment2 * of_moment(moment2) +
         (ema == nullptr ? 0 : digest_of_ema * array_digest(ema, elements));
}

}  // namespace holdfast::core
