// Multiplies bf16 matrices with fp32 sums by matrix instructions, and defines the operand layouts. Files of
// this folder are compiled twice: HF_ISA = avx512_bf16 (vdpbf16ps) and amx (tdpbf16ps). As in
// kernels/cpu/ops/ops.h, nothing inline may be shared with other instruction sets.
//
//   A  row-major, the depth contiguous.
//   B  panels of 16 columns; a panel is (depth / 2, 16, 2): a dword holds the elements of two neighbouring
//      rows of B in one column.
//   C  row-major fp32.
//
// Rows and columns come in multiples of 16, the depth in multiples of 32; callers pad with zeros. The order
// of a sum is fixed by the instruction, so bits differ between the two; denormal operands and results are
// zero.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

inline constexpr std::int64_t panel_columns = 16;
inline constexpr std::int64_t depth_step = 32;

struct Bf16Product {
  const BFloat16* a = nullptr;
  std::int64_t a_stride = 0;  // elements between rows
  const BFloat16* b = nullptr;
  std::int64_t b_stride = 0;  // elements between panels
  float* c = nullptr;
  std::int64_t c_stride = 0;
  std::int64_t rows = 0, columns = 0, depth = 0;
};

enum class Sum { start, add };  // C = A B, C += A B

// Orders memory accesses: the compiler does not know that tile instructions read and write memory.
HF_INLINE void order_memory() {
  asm volatile("" ::: "memory");
}

#if defined(__AMX_BF16__)

// While an object lives, its thread may call multiply(). The process must have been given the tile registers.
class MatrixUnit {
 public:
  MatrixUnit() {
    struct alignas(64) Tiles {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    const Tiles tiles;
    order_memory();
    _tile_loadconfig(&tiles);
  }
  ~MatrixUnit() { _tile_release(); }
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;
};

// Computes a block: tiles 0 to 3 hold C, 4 and 5 A, 6 and 7 B.
template <Sum sum, bool two_rows, bool two_columns>
HF_INLINE void multiply_block(const Bf16Product& p, const BFloat16* a, const BFloat16* b, float* c) {
  constexpr std::int64_t line = 64;
  const std::int64_t a_bytes = p.a_stride * 2, c_bytes = p.c_stride * 4;
  if constexpr (sum == Sum::start) {
    _tile_zero(0);
    if constexpr (two_columns) _tile_zero(1);
    if constexpr (two_rows) _tile_zero(2);
    if constexpr (two_rows && two_columns) _tile_zero(3);
  } else {
    _tile_loadd(0, c, c_bytes);
    if constexpr (two_columns) _tile_loadd(1, c + 16, c_bytes);
    if constexpr (two_rows) _tile_loadd(2, c + 16 * p.c_stride, c_bytes);
    if constexpr (two_rows && two_columns) _tile_loadd(3, c + 16 * p.c_stride + 16, c_bytes);
  }
  for (std::int64_t k = 0; k < p.depth; k += depth_step) {
    _tile_loadd(4, a + k, a_bytes);
    _tile_loadd(6, b + k * panel_columns, line);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (two_columns) {
      _tile_loadd(7, b + p.b_stride + k * panel_columns, line);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (two_rows) {
      _tile_loadd(5, a + 16 * p.a_stride + k, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (two_rows && two_columns) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  if constexpr (two_columns) _tile_stored(1, c + 16, c_bytes);
  if constexpr (two_rows) _tile_stored(2, c + 16 * p.c_stride, c_bytes);
  if constexpr (two_rows && two_columns) _tile_stored(3, c + 16 * p.c_stride + 16, c_bytes);
}

template <Sum sum>
[[gnu::noinline]] void multiply(const Bf16Product& p) {
  order_memory();
  for (std::int64_t row = 0; row < p.rows; row += 32) {
    const bool two_rows = p.rows - row > 16;
    const BFloat16* a = p.a + row * p.a_stride;
    for (std::int64_t column = 0; column < p.columns; column += 32) {
      const bool two_columns = p.columns - column > 16;
      const BFloat16* b = p.b + column / panel_columns * p.b_stride;
      float* c = p.c + row * p.c_stride + column;
      if (two_rows && two_columns) {
        multiply_block<sum, true, true>(p, a, b, c);
      } else if (two_rows) {
        multiply_block<sum, true, false>(p, a, b, c);
      } else if (two_columns) {
        multiply_block<sum, false, true>(p, a, b, c);
      } else {
        multiply_block<sum, false, false>(p, a, b, c);
      }
    }
  }
  order_memory();
}

#else

class MatrixUnit {};  // nothing to set up

// Computes a block of 8 rows by up to 2 panels, whose sums stay in 16 registers: sixteen rows by one panel
// would need as many broadcasts as products.
template <Sum sum, int panels>
HF_INLINE void multiply_block(const Bf16Product& p, const BFloat16* a, const BFloat16* b, float* c) {
  constexpr int rows = 8;
  __m512 total[rows][panels];
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < panels; ++v) {
      total[r][v] =
          sum == Sum::start ? _mm512_setzero_ps() : _mm512_loadu_ps(c + r * p.c_stride + v * panel_columns);
    }
  }
  for (std::int64_t k = 0; k < p.depth; k += 2) {
    __m512i b_k[panels];
    for (int v = 0; v < panels; ++v) {
      b_k[v] = _mm512_loadu_si512(b + v * p.b_stride + k * panel_columns);
    }
    for (int r = 0; r < rows; ++r) {
      int pair;
      __builtin_memcpy(&pair, a + r * p.a_stride + k, sizeof(pair));
      const __m512i a_rk = _mm512_set1_epi32(pair);
      for (int v = 0; v < panels; ++v) {
        total[r][v] = _mm512_dpbf16_ps(total[r][v], __builtin_bit_cast(__m512bh, a_rk),
                                       __builtin_bit_cast(__m512bh, b_k[v]));
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < panels; ++v) {
      _mm512_storeu_ps(c + r * p.c_stride + v * panel_columns, total[r][v]);
    }
  }
}

template <Sum sum>
[[gnu::noinline]] void multiply(const Bf16Product& p) {
  for (std::int64_t column = 0; column < p.columns; column += 32) {
    const BFloat16* b = p.b + column / panel_columns * p.b_stride;
    for (std::int64_t row = 0; row < p.rows; row += 8) {
      const BFloat16* a = p.a + row * p.a_stride;
      float* c = p.c + row * p.c_stride + column;
      if (p.columns - column > 16) {
        multiply_block<sum, 2>(p, a, b, c);
      } else {
        multiply_block<sum, 1>(p, a, b, c);
      }
    }
  }
}

#endif

}  // namespace holdfast::kernels::cpu::HF_ISA
