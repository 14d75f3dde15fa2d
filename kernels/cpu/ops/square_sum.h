// Computes block sums of squares, in double, and digests: of given values (SquareSum) and of sums while they are
// made (Accumulate). The order is fixed: element i of each 32 of a block goes to lane i of four vectors of eight;
// the vectors are added as a tree at the end.
#pragma once

#include "kernels/cpu/ops/block_digest.h"
#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/simd.h"
#include "kernels/elementwise.h"
#include "runtime/core/shard_spec.h"

namespace holdfast::kernels::cpu::HF_ISA {

inline constexpr std::int64_t square_sum_stride = 32;
inline constexpr std::int64_t square_sum_chunk_blocks = 32;

// Sums of squares and digests by block; no digests: null.
struct BlockSums {
  double* squares;
  std::uint64_t* digests;
};

// Calls body(first element, elements, their sums) for pieces of the array of an op, whole blocks each, in parallel.
// `sums` are those of all blocks.
template <typename Op, typename Body>
HF_INLINE void for_summed_pieces(const Context& context, const Op& op, const BlockSums& sums,
                                 const Body& body) {
  constexpr std::int64_t block = static_cast<std::int64_t>(block_elements);
  const BlockSegment whole = {.count = op.count};
  const BlockSegment* const segments = op.segment_count > 0 ? op.segments : &whole;
  const std::int64_t segment_count = larger(1, op.segment_count);
  const BlockSegment& last = segments[segment_count - 1];
  const std::int64_t blocks = last.first_block + ceil_divide(last.count, block);
  for_chunks(context, blocks, square_sum_chunk_blocks, [&](std::int64_t begin, std::int64_t size) {
    for_parts(segments, segment_count, begin, begin + size,
              [&](const BlockSegment& segment, std::int64_t first, std::int64_t elements) {
                const std::int64_t of_block = segment.first_block + first / block;
                body(segment.first + first, elements,
                     BlockSums{.squares = sums.squares + of_block,
                               .digests = sums.digests != nullptr ? sums.digests + of_block : nullptr});
              });
  });
}

// Sets the sums of each block of `count` values. values_at(i, size), called for i = 0, 32, 64 ..., points to values
// i to i + size - 1; size is 32 except at the end.
template <bool with_digests, typename ValuesAt>
HF_INLINE void for_square_sums(std::int64_t count, const BlockSums& sums, const ValuesAt& values_at) {
  constexpr std::int64_t block = static_cast<std::int64_t>(block_elements);
  for (std::int64_t first = 0; first < count; first += block) {
    const std::int64_t end = smaller(first + block, count);
    f64x8 sum0 = zero_f64(), sum1 = zero_f64(), sum2 = zero_f64(), sum3 = zero_f64();
    ArrayDigest digest;
    DigestWeights weights;
    const auto add_stride = [&](const float* from) __attribute__((always_inline)) {
      const f64x8 value0 = load_f64(from), value1 = load_f64(from + 8);
      const f64x8 value2 = load_f64(from + 16), value3 = load_f64(from + 24);
      sum0 = fma(value0, value0, sum0);
      sum1 = fma(value1, value1, sum1);
      sum2 = fma(value2, value2, sum2);
      sum3 = fma(value3, value3, sum3);
      if constexpr (with_digests) {
        digest.add(weights, load(from));
        weights.advance();
        digest.add(weights, load(from + vector_lanes));
        weights.advance();
      }
    };
    std::int64_t i = first;
    for (; i + square_sum_stride <= end; i += square_sum_stride) add_stride(values_at(i, square_sum_stride));
    if (i < end) {
      float rest[square_sum_stride] = {};
      __builtin_memcpy(rest, values_at(i, end - i), static_cast<std::size_t>(end - i) * sizeof(float));
      add_stride(rest);
    }
    sums.squares[first / block] = reduce_add((sum0 + sum1) + (sum2 + sum3));
    if constexpr (with_digests) sums.digests[first / block] = digest.value();
  }
}
template <typename ValuesAt>
HF_INLINE void square_sums(std::int64_t count, const BlockSums& sums, const ValuesAt& values_at) {
  if (sums.digests != nullptr) {
    for_square_sums<true>(count, sums, values_at);
  } else {
    for_square_sums<false>(count, sums, values_at);
  }
}

}  // namespace holdfast::kernels::cpu::HF_ISA
