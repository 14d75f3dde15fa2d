// Computes the digest of a block of optimizer state (kernels/state_digest.h) sixteen elements at a time.
// Lanes beyond the end of a block are added as zeros, which change nothing.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/state_digest.h"

namespace holdfast::inline kernels::cpu::HF_ISA {

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

// Sums of one block, by lane.
class BlockDigest {
 public:
  u64x8 weight = zero_u64(), moment1 = zero_u64(), moment2 = zero_u64();

  // Adds sixteen elements of each array.
  HF_INLINE void add(const DigestWeights& by, f32x16 w, f32x16 m, f32x16 v) {
    add(by, w);
    moment1 = moment1 + weighted(by, m);
    moment2 = moment2 + weighted(by, v);
  }
  // Adds sixteen elements of a weight without moments.
  HF_INLINE void add(const DigestWeights& by, f32x16 w) { weight = weight + weighted(by, w); }
  HF_INLINE std::uint64_t value() const {
    return reduce_add(weight) + digest_of_moment1 * reduce_add(moment1) +
           digest_of_moment2 * reduce_add(moment2);
  }

 private:
  HF_INLINE static u64x8 weighted(const DigestWeights& by, f32x16 values) {
    const u64x8 bits = bits_of(values);
    return low_product(bits, by.even) + low_product(high_of(bits), by.odd);
  }
};

}  // namespace holdfast::inline kernels::cpu::HF_ISA
