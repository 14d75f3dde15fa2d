// Makes operands of bf16_product.h from rows in memory, and bf16 from fp32 vectors.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

// Rows in memory; elements outside of them read as zero.
struct Bf16Rows {
  const BFloat16* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0, columns = 0;

  // Loads elements [column, column + 32) of a row; column < columns. There are no branches: rows are often
  // two vectors.
  HF_INLINE __m512i load(std::int64_t row, std::int64_t column) const {
    const auto left = static_cast<unsigned>(smaller(columns - column, 32));
    const __mmask32 inside = row < rows ? _bzhi_u32(~0U, left) : 0;
    return _mm512_maskz_loadu_epi16(inside, data + (row < rows ? row * stride : 0) + column);
  }
};

// Rounds two vectors to nearest even: `low` becomes elements 0 to 15, `high` 16 to 31. Denormals become zero.
HF_INLINE __m512i to_bf16(f32x16 low, f32x16 high) {
  return __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(high.part[0], low.part[0]));
}

// Stores `count` floats times `scale`, rounded.
HF_INLINE void store_rounded(const float* from, std::int64_t count, float scale, BFloat16* to) {
  for_lanes(count, [&](std::int64_t i, auto lanes) {
    const __m256bh rounded = _mm512_cvtneps_pbh((load(from + i) * scale).part[0]);
    _mm256_mask_storeu_epi16(to + i, static_cast<__mmask16>((1U << lanes.count) - 1U),
                             __builtin_bit_cast(__m256i, rounded));
  });
}

// Takes elements 0 to 15 (`high` false) or 16 to 31 of two rows in turn: 16 columns of a panel of B.
template <bool high>
HF_INLINE __m512i interleave(__m512i even, __m512i odd) {
  constexpr short base = high ? 16 : 0;
  const __m512i index =
      _mm512_set_epi16(base + 47, base + 15, base + 46, base + 14, base + 45, base + 13, base + 44, base + 12,
                       base + 43, base + 11, base + 42, base + 10, base + 41, base + 9, base + 40, base + 8,
                       base + 39, base + 7, base + 38, base + 6, base + 37, base + 5, base + 36, base + 4,
                       base + 35, base + 3, base + 34, base + 2, base + 33, base + 1, base + 32, base + 0);
  return _mm512_permutex2var_epi16(even, index, odd);
}

// Transposes sixteen rows of sixteen dwords: words by pairs, by fours, and quarters of a vector twice.
HF_INLINE void transpose_dwords(__m512i (&rows)[16]) {
  constexpr __mmask16 all = 0xffff;  // GCC 12 takes the unmasked intrinsics for uses of uninitialized memory
  __m512i pairs[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_maskz_unpacklo_epi32(all, rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_maskz_unpackhi_epi32(all, rows[i], rows[i + 1]);
  }
  __m512i fours[16];  // [4 g + j]: in each quarter q column 4 q + j of rows 4 g to 4 g + 3
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_maskz_unpacklo_epi64(0xff, pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, pairs[i + 1], pairs[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i low01 = _mm512_maskz_shuffle_i32x4(all, fours[j], fours[j + 4], 0x44);
    const __m512i high01 = _mm512_maskz_shuffle_i32x4(all, fours[j], fours[j + 4], 0xee);
    const __m512i low23 = _mm512_maskz_shuffle_i32x4(all, fours[j + 8], fours[j + 12], 0x44);
    const __m512i high23 = _mm512_maskz_shuffle_i32x4(all, fours[j + 8], fours[j + 12], 0xee);
    rows[j] = _mm512_maskz_shuffle_i32x4(all, low01, low23, 0x88);
    rows[j + 4] = _mm512_maskz_shuffle_i32x4(all, low01, low23, 0xdd);
    rows[j + 8] = _mm512_maskz_shuffle_i32x4(all, high01, high23, 0x88);
    rows[j + 12] = _mm512_maskz_shuffle_i32x4(all, high01, high23, 0xdd);
  }
}

// Packs A = the rows: padded_rows x padded_columns, the latter a multiple of 32.
inline void pack_a(const Bf16Rows& source, std::int64_t padded_rows, std::int64_t padded_columns,
                   BFloat16* target) {
  for (std::int64_t row = 0; row < padded_rows; ++row) {
    for (std::int64_t column = 0; column < padded_columns; column += 32) {
      _mm512_storeu_si512(target + row * padded_columns + column, source.load(row, column));
    }
  }
}

// Packs A = the transposed rows: padded_columns (a multiple of 16) x padded_rows (of 32).
inline void pack_a_transposed(const Bf16Rows& source, std::int64_t padded_rows, std::int64_t padded_columns,
                              BFloat16* target) {
  for (std::int64_t row = 0; row < padded_rows; row += 32) {
    for (std::int64_t column = 0; column < padded_columns; column += 16) {
      __m512i words[16];
#pragma GCC unroll 16
      for (int pair = 0; pair < 16; ++pair) {
        words[pair] =
            interleave<false>(source.load(row + 2 * pair, column), source.load(row + 2 * pair + 1, column));
      }
      transpose_dwords(words);
      for (int i = 0; i < 16; ++i) {
        _mm512_storeu_si512(target + (column + i) * padded_rows + row, words[i]);
      }
    }
  }
}

// Packs B = the rows (depth = rows): padded_columns / 16 panels of padded_rows / 2 lines, `panel_stride`
// apart.
inline void pack_b(const Bf16Rows& source, std::int64_t padded_rows, std::int64_t padded_columns,
                   BFloat16* target, std::int64_t panel_stride) {
  for (std::int64_t row = 0; row < padded_rows; row += 2) {
    for (std::int64_t column = 0; column < padded_columns; column += 32) {
      const __m512i even = source.load(row, column), odd = source.load(row + 1, column);
      BFloat16* to = target + column / 16 * panel_stride + row * 16;
      _mm512_storeu_si512(to, interleave<false>(even, odd));
      if (padded_columns - column > 16) _mm512_storeu_si512(to + panel_stride, interleave<true>(even, odd));
    }
  }
}

// Packs B = the transposed rows (depth = columns): padded_rows / 16 panels of padded_columns / 2 lines.
inline void pack_b_transposed(const Bf16Rows& source, std::int64_t padded_rows, std::int64_t padded_columns,
                              BFloat16* target) {
  for (std::int64_t row = 0; row < padded_rows; row += 16) {
    for (std::int64_t column = 0; column < padded_columns; column += 32, target += 512) {
      __m512i words[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) words[i] = source.load(row + i, column);
      transpose_dwords(words);
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(target + i * 32, words[i]);
    }
  }
}

// Returns 2^x for x < 128 with a relative error below 2.5e-7 (a polynomial of degree 5 on [0, 1)); 0 below
// -126, and so at -inf; NaN stays NaN. It takes half the instructions of exp2() in
// kernels/cpu/ops/attention_tiles.h.
HF_INLINE f32x16 fast_exp2(f32x16 x) {
  const __m512 value = x.part[0];
  // A denormal result would cost an assist of a hundred cycles.
  const __mmask16 is_normal = _mm512_cmp_ps_mask(value, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  constexpr int floor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const __m512 r = _mm512_reduce_ps(value, floor);
  __m512 p = _mm512_set1_ps(1.8775767e-3F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.98933969e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.58263175e-2F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.40153611e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.93153083e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.99999994F));
  return f32x16{{_mm512_maskz_scalef_ps(is_normal, p, value)}};
}

}  // namespace holdfast::kernels::cpu::HF_ISA
