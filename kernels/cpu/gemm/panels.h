// Packing of the operands of a matrix product into panels of 32-bit words, the order in which a tile reads
// them.
//
// Both operands are seen as (extent, depth): `extent` counts output rows (of A) or columns (of B), `depth` is
// what the product sums over. A word is what one multiply instruction takes per lane: an fp32 value, or two
// neighbouring bf16 values of the depth. A panel holds `width` neighbours of the extent, word by word of the
// depth: word d of neighbour i lies at d * width + i. What lies beyond the matrix is packed as zero.
#pragma once

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

inline constexpr int lanes = native_lanes;

HF_INLINE std::int64_t padded(std::int64_t value, std::int64_t unit) {
  return ceil_divide(value, unit) * unit;
}

template <typename ElementType>
struct Operand {
  using Element = ElementType;
  const Element* data = nullptr;
  std::int64_t stride = 0;        // between rows of the matrix as it is stored
  bool depth_contiguous = false;  // stored as (extent, depth); otherwise as (depth, extent)
};

// Loads `count` words from elements; the rest is zero.
HF_INLINE NativeF32 load_words(const float* from, std::int64_t count) {
  if (count >= lanes) return native_load(from);
#if defined(__AVX512F__)
  return load(from, FirstLanes{static_cast<int>(count)}).part[0];
#else
  float buffer[lanes] = {};
  for (std::int64_t i = 0; i < count; ++i) buffer[i] = from[i];
  return native_load(buffer);
#endif
}
HF_INLINE NativeF32 load_words(const BFloat16* from, std::int64_t count) {
  if (count >= lanes) return native_load(from);
  BFloat16 buffer[lanes] = {};
  for (std::int64_t i = 0; i < count; ++i) buffer[i] = from[i];
  return native_load(buffer);
}

// Words that are single fp32 values; bf16 elements are widened.
template <typename ElementType>
struct ValueWords {
  using Element = ElementType;
  static constexpr int depth_per_word = 1;
  // Loads words of one neighbour along the depth; `depth` elements are left.
  HF_INLINE static NativeF32 along_depth(const Element* from, std::int64_t depth) {
    return load_words(from, depth);
  }
  // Loads one word of `count` neighbours of an operand stored as (depth, extent).
  HF_INLINE static NativeF32 across(const Element* from, std::int64_t, std::int64_t, std::int64_t count) {
    return load_words(from, count);
  }
};

#if defined(__AVX512BF16__)
// Words that are pairs of bf16 values.
struct PairWords {
  using Element = BFloat16;
  static constexpr int depth_per_word = 2;
  HF_INLINE static NativeF32 along_depth(const BFloat16* from, std::int64_t depth) {
    const __mmask32 mask = depth >= 32 ? ~0U : (1U << depth) - 1U;
    return __builtin_bit_cast(NativeF32, _mm512_maskz_loadu_epi16(mask, from));
  }
  HF_INLINE static NativeF32 across(const BFloat16* from, std::int64_t stride, std::int64_t depth,
                                    std::int64_t count) {
    const __mmask16 mask = static_cast<__mmask16>(count >= 16 ? 0xffffU : (1U << count) - 1U);
    const __m512i even = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_maskz_loadu_epi16(mask, from));
    if (depth < 2) return __builtin_bit_cast(NativeF32, even);
    const __m512i odd = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_maskz_loadu_epi16(mask, from + stride));
    return __builtin_bit_cast(NativeF32, _mm512_or_si512(even, _mm512_maskz_slli_epi32(0xffff, odd, 16)));
  }
};
#endif

// Exchanges rows[i] lane j with rows[j] lane i.
#if !defined(__AVX2__)
HF_INLINE void transpose(NativeF32 (&rows)[4]) {
  const NativeF32 a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const NativeF32 b = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const NativeF32 c = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const NativeF32 d = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  rows[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  rows[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  rows[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  rows[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}
#elif defined(__AVX512F__)
HF_INLINE void transpose(NativeF32 (&rows)[16]) {
  __m512d pairs[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = __builtin_bit_cast(__m512d, _mm512_maskz_unpacklo_ps(0xffff, rows[i], rows[i + 1]));
    pairs[i + 1] = __builtin_bit_cast(__m512d, _mm512_maskz_unpackhi_ps(0xffff, rows[i], rows[i + 1]));
  }
  __m512 quads[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    quads[i] = __builtin_bit_cast(__m512, _mm512_maskz_unpacklo_pd(0xff, pairs[i], pairs[i + 2]));
    quads[i + 1] = __builtin_bit_cast(__m512, _mm512_maskz_unpackhi_pd(0xff, pairs[i], pairs[i + 2]));
    quads[i + 2] = __builtin_bit_cast(__m512, _mm512_maskz_unpacklo_pd(0xff, pairs[i + 1], pairs[i + 3]));
    quads[i + 3] = __builtin_bit_cast(__m512, _mm512_maskz_unpackhi_pd(0xff, pairs[i + 1], pairs[i + 3]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 a = _mm512_maskz_shuffle_f32x4(0xffff, quads[i], quads[i + 4], 0x88);
    const __m512 b = _mm512_maskz_shuffle_f32x4(0xffff, quads[i], quads[i + 4], 0xdd);
    const __m512 c = _mm512_maskz_shuffle_f32x4(0xffff, quads[i + 8], quads[i + 12], 0x88);
    const __m512 d = _mm512_maskz_shuffle_f32x4(0xffff, quads[i + 8], quads[i + 12], 0xdd);
    rows[i] = _mm512_maskz_shuffle_f32x4(0xffff, a, c, 0x88);
    rows[i + 8] = _mm512_maskz_shuffle_f32x4(0xffff, a, c, 0xdd);
    rows[i + 4] = _mm512_maskz_shuffle_f32x4(0xffff, b, d, 0x88);
    rows[i + 12] = _mm512_maskz_shuffle_f32x4(0xffff, b, d, 0xdd);
  }
}
#else
HF_INLINE void transpose(NativeF32 (&rows)[8]) {
  __m256d pairs[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = __builtin_bit_cast(__m256d, _mm256_unpacklo_ps(rows[i], rows[i + 1]));
    pairs[i + 1] = __builtin_bit_cast(__m256d, _mm256_unpackhi_ps(rows[i], rows[i + 1]));
  }
  __m256 quads[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    quads[i] = __builtin_bit_cast(__m256, _mm256_unpacklo_pd(pairs[i], pairs[i + 2]));
    quads[i + 1] = __builtin_bit_cast(__m256, _mm256_unpackhi_pd(pairs[i], pairs[i + 2]));
    quads[i + 2] = __builtin_bit_cast(__m256, _mm256_unpacklo_pd(pairs[i + 1], pairs[i + 3]));
    quads[i + 3] = __builtin_bit_cast(__m256, _mm256_unpackhi_pd(pairs[i + 1], pairs[i + 3]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
  }
}
#endif

#if defined(__AVX2__)
template <int half>
HF_INLINE void store_half(float* to, NativeF32 value) {
#if defined(__AVX512F__)
  const __m256d part = _mm512_maskz_extractf64x4_pd(0xf, __builtin_bit_cast(__m512d, value), half);
#else
  const __m128 part = _mm256_extractf128_ps(value, half);
#endif
  __builtin_memcpy(to, &part, sizeof(part));
}
#endif

// Loads a square of words: neighbours [extent, extent + lanes) and `lanes` words from element `depth` on, as
// vectors over the neighbours, or (along_depth) over the depth. `extent_left` and `depth_left` elements
// exist.
template <bool along_depth, typename Words>
HF_INLINE void load_square(const Operand<typename Words::Element>& operand, std::int64_t extent,
                           std::int64_t extent_left, std::int64_t depth, std::int64_t depth_left,
                           NativeF32 (&square)[lanes]) {
  if (extent_left <= 0) {
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) square[i] = NativeF32{};
    return;
  }
  if (operand.depth_contiguous) {
    const auto* from = operand.data + extent * operand.stride + depth;
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) {
      square[i] = i < extent_left ? Words::along_depth(from + i * operand.stride, depth_left) : NativeF32{};
      __builtin_prefetch(from + i * operand.stride + 4 * 64 / static_cast<int>(sizeof(*from)));
    }
  } else {
    const auto* from = operand.data + depth * operand.stride + extent;
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) {
      const std::int64_t skipped = i * Words::depth_per_word;
      for (int line = 0; line < Words::depth_per_word; ++line) {  // of the next square: rows lie far apart
        __builtin_prefetch(from + (skipped + line + lanes * Words::depth_per_word) * operand.stride);
      }
      square[i] = skipped < depth_left ? Words::across(from + skipped * operand.stride, operand.stride,
                                                       depth_left - skipped, extent_left)
                                       : NativeF32{};
    }
  }
  if (operand.depth_contiguous != along_depth) transpose(square);
}

// Returns the address of word `word` of neighbour `extent` in panels of `width` neighbours.
template <int width>
HF_INLINE float* word_in(float* panels, std::int64_t extent, std::int64_t word, std::int64_t words) {
  return panels + extent / width * (words * width) + word * width + extent % width;
}

// Stores one word of `lanes` neighbours, which belong to one panel or to two (`apart` elements from each
// other).
template <int width>
HF_INLINE void store_words(float* to, [[maybe_unused]] std::int64_t apart, NativeF32 value) {
  if constexpr (width >= lanes) {
    native_store(to, value);
  } else {
#if defined(__AVX2__)
    static_assert(2 * width == lanes);
    store_half<0>(to, value);
    store_half<1>(to + apart, value);
#endif
  }
}

// Packs neighbours [first, first + count) and elements [begin, begin + depth) into panels; `words` per
// neighbour are written. `first` is a multiple of the panel's width.
template <typename Words, int width>
void pack_panels(const Operand<typename Words::Element>& operand, std::int64_t first, std::int64_t count,
                 std::int64_t begin, std::int64_t depth, std::int64_t words, float* panels) {
  static_assert(width % lanes == 0 || lanes % width == 0);
  if (operand.depth_contiguous) {
    for (std::int64_t extent = 0; extent < count; extent += lanes) {
      for (std::int64_t word = 0; word < words; word += lanes) {
        NativeF32 square[lanes];
        const std::int64_t skipped = word * Words::depth_per_word;
        load_square<false, Words>(operand, first + extent, count - extent, begin + skipped, depth - skipped,
                                  square);
        float* to = word_in<width>(panels, extent, word, words);
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) {
          if (word + i >= words) break;
          store_words<width>(to + i * width, words * width, square[i]);
        }
      }
    }
    return;
  }
  // Rows are packed one by one as they are stored; they are far apart, so the processor does not prefetch the
  // next by itself.
  constexpr std::int64_t words_ahead = 8;
  const auto* row = operand.data + begin * operand.stride + first;
  const std::int64_t step = Words::depth_per_word * operand.stride;
  for (std::int64_t word = 0; word < words; ++word, row += step) {
    const std::int64_t left = depth - word * Words::depth_per_word;
    for (std::int64_t extent = 0; extent < count; extent += lanes) {
      for (int line = 0; line < Words::depth_per_word; ++line) {
        __builtin_prefetch(row + words_ahead * step + line * operand.stride + extent);
      }
      const NativeF32 value =
          left > 0 ? Words::across(row + extent, operand.stride, left, count - extent) : NativeF32{};
      store_words<width>(word_in<width>(panels, extent, word, words), words * width, value);
    }
  }
}

}  // namespace holdfast::kernels::cpu::HF_ISA
