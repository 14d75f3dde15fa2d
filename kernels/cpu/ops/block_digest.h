// Computes digests of blocks (runtime/core/block_digest.h) sixteen elements at a time. Lanes beyond the end of a block are
// added as zeros, which change nothing.
#pragma once

#include "kernels/cpu/simd.h"
#include "runtime/core/block_digest.h"

namespace holdfast::kernels::cpu::HF_ISA {

// Weights of sixteen consecutive elements of a block, at first the first ones; those of even and odd elements
// in the low halves of the lanes.
class DigestWeights {
 public:
  DigestWeights() : even(load_u64(first_even)), odd(load_u64(first_odd)) {}
  // Moves on to the next sixteen. What the products leave in the high halves is never read.
  HF_INLINE void advance() {
    const u64x8 step = broadcast_u64(digest_power(vector_lanes));
    even = low_product(even, step);
    odd = low_product(odd, step);
  }

  u64x8 even, odd;

 private:
  static constexpr std::uint64_t first_even[] = {digest_power(0),  digest_power(2), digest_power(4),
                                                 digest_power(6),  digest_power(8), digest_power(10),
                                                 digest_power(12), digest_power(14)};
  static constexpr std::uint64_t first_odd[] = {digest_power(1),  digest_power(3), digest_power(5),
                                                digest_power(7),  digest_power(9), digest_power(11),
                                                digest_power(13), digest_power(15)};
};

// Sum over the elements of a block of one array, by lane.
class ArrayDigest {
 public:
  // Adds sixteen elements.
  HF_INLINE void add(const DigestWeights& by, f32x16 values) {
    const u64x8 bits = bits_of(values);
    sums_ = sums_ + low_product(bits, by.even) + low_product(high_of(bits), by.odd);
  }
  HF_INLINE std::uint64_t value() const { return reduce_add(sums_); }

 private:
  u64x8 sums_ = zero_u64();
};

// Digest of a block of optimizer state.
class BlockDigest {
 public:
  ArrayDigest weight, moment1, moment2;

  HF_INLINE std::uint64_t value() const {
    return weight.value() + digest_of_moment1 * moment1.value() + digest_of_moment2 * moment2.value();
  }
};

}  // namespace holdfast::kernels::cpu::HF_ISA
