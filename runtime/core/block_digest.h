// Defines the digest of a block of optimizer state, which the optimizer carries from update to update: a bit that
// flips at rest, between two updates, makes the next one read other values than the last one wrote. The op
// OptimizerDigest makes the first ones. The digest of a block of the gradient, which SquareSum and Accumulate
// make, is that of a weight without moments.
//
//   digest = sum over the arrays a (0 = weight, 1 = moment1, 2 = moment2, 3 = ema) of array_weight(a) *
//            sum over the elements i of the block of element_weight(i) * bits of element i
//
// modulo 2^64, with array_weight(a) = g^(4096 a) mod 2^32 and element_weight(i) = g^i mod 2^32; the bits of a bf16
// moment are those of the same number in fp32. A sum of integers does not depend on its order, so every device,
// instruction set and number of threads gives the same digest, and 32-bit factors are what vector units multiply
// fast.
//
// g is 5 modulo 8, so it has order 2^30 modulo 2^32: the products of the weights are odd, and all those of a
// block differ modulo 2^32. Hence one flipped bit always changes the digest (by an odd multiple of 2^k, k <
// 32), and so does an exchange of two elements with different bits (by a product of two differences that
// have fewer than 32 trailing zero bits each). Any other change goes unnoticed with a chance near 2^-64.
#pragma once

#include <cstdint>

#include "runtime/core/block.h"
#include "runtime/core/tensor.h"

namespace holdfast::core {

// g, a multiplier modulo 2^32 with good spectra (L'Ecuyer 1999, "Tables of linear congruential generators").
inline constexpr std::uint32_t digest_generator = 747796405;

// Returns g^exponent modulo 2^32. No code of it remains in a program, as files of kernels/cpu/ops require.
consteval std::uint32_t digest_power(std::uint64_t exponent) {
  std::uint32_t result = 1;
  for (std::uint32_t square = digest_generator; exponent != 0; exponent /= 2, square *= square) {
    if (exponent % 2 != 0) result *= square;
  }
  return result;
}

// Weights of the arrays moment1, moment2 and ema; that of `weight` is 1.
inline constexpr std::uint64_t digest_of_moment1 = digest_power(block_elements);
inline constexpr std::uint64_t digest_of_moment2 = digest_power(2 * block_elements);
inline constexpr std::uint64_t digest_of_ema = digest_power(3 * block_elements);

// Returns the digest of a block of `count` elements, block_elements at most. `moments`: the type of both, fp32 or bf16.
// Those that are null count as zeros.
std::uint64_t state_digest(const float* weight, const void* moment1, const void* moment2, std::int64_t count,
                           DType moments = DType::fp32, const float* ema = nullptr);

}  // namespace holdfast::core
