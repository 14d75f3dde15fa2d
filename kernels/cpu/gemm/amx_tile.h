// The tile of a matrix product that AMX computes: 32 x 32 sums in four tile registers, bf16 operands.
//
// Bits: an output element starts at its base and adds pairs of the depth in order, in fp32 as the instruction
// TDPBF16PS defines it (denormals are zero); a chunk goes on where the one before stopped, and the residual is
// added last, or the sum multiplied by GELU's derivative. Which tile or thread computed it cannot change it.
#pragma once

#include "kernels/cpu/gemm/vector_tile.h"

namespace holdfast::kernels::cpu::HF_ISA {

// Configures tile registers of 16 rows x 64 bytes; each thread has its own configuration.
struct AmxConfiguration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(AmxConfiguration) == 64);

struct AmxTile {
  using Words = PairWords;
  using Element = BFloat16;
  static constexpr int half = 16;  // rows, columns and words of a tile register
  static constexpr int rows = 32, columns = 32, row_step = 32;
  static constexpr int depth_unit = 32;
  static constexpr std::int64_t chunk = 1024;

  static void enter() {
    static constexpr AmxConfiguration configuration;  // static: GCC sees only its first 8 bytes as read
    _tile_loadconfig(&configuration);
  }
  static void leave() { _tile_release(); }

  // Packs A into registers of 16 rows x 16 words, one after another along the depth.
  static void pack_rows(const Operand<Element>& a, std::int64_t first, std::int64_t count, std::int64_t begin,
                        std::int64_t depth, std::int64_t words, float* panels) {
    for (std::int64_t word = 0; word < words; word += half) {
      for (std::int64_t row = 0; row < padded(count, rows); row += half) {
        NativeF32 square[half];
        load_square<true, Words>(a, first + row, count - row, begin + 2 * word, depth - 2 * word, square);
        float* to = panels + row * words + word * half;
#pragma GCC unroll 16
        for (int i = 0; i < half; ++i) native_store(to + i * half, square[i]);
      }
    }
  }
  // Packs B into panels of 16 columns, which are registers of 16 words x 16 columns.
  static void pack_columns(const Operand<Element>& b, std::int64_t first, std::int64_t count,
                           std::int64_t begin, std::int64_t depth, std::int64_t words, float* panels) {
    pack_panels<Words, half>(b, first, count, begin, depth, words, panels);
  }

  template <typename C>
  static void run(std::int64_t words, const float* a, const float* b, const TileOutput<C>& output) {
    constexpr bool float_target = sizeof(C) == sizeof(float);
    const bool whole = output.rows == rows && output.columns == columns;
    alignas(64) float memory[rows * columns];
    // The sums start from `base` ...
    const float* base = output.base;
    std::int64_t base_stride = output.base_stride;
    if (base != nullptr && !whole) {
      copy_base(output, memory);
      base = memory;
      base_stride = columns;
    }
    // ... and go to `target`.
    float* target = memory;
    std::int64_t target_stride = columns;
    if constexpr (float_target) {
      if (whole && output.residual == nullptr && output.gelu_of == nullptr) {
        target = output.c;
        target_stride = output.c_stride;
      }
    }
    multiply<C>(words, a, b, base, base_stride, target, target_stride, output);
    if (target == memory) {
      TileOutput<C> rest = output;
      rest.base = nullptr;
      write_sums(memory, columns, rest);
    }
  }

 private:
  template <typename C>
  static void copy_base(const TileOutput<C>& output, float* memory) {
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; ++column) {
        const bool exists = row < output.rows && column < output.columns;
        memory[row * columns + column] = exists ? output.base[row * output.base_stride + column] : 0.0F;
      }
    }
  }

  template <typename C>
  [[gnu::noinline]] static void multiply(std::int64_t words, const float* a, const float* b,
                                         const float* base, std::int64_t base_stride, float* target,
                                         std::int64_t target_stride, const TileOutput<C>& output) {
    const std::int64_t panel = words * half;  // words of one panel of A or B
    const std::size_t base_bytes = static_cast<std::size_t>(base_stride) * sizeof(float);
    if (base == nullptr) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, base, base_bytes);
      _tile_loadd(1, base + half, base_bytes);
      _tile_loadd(2, base + half * base_stride, base_bytes);
      _tile_loadd(3, base + half * base_stride + half, base_bytes);
    }
    // The next tile's rows are far apart; a few are prefetched in every step, into L2: more at a time would
    // wait for each other and delay A and B.
    const C* ahead = output.c_ahead;
    std::int64_t rows_ahead = ahead != nullptr ? rows : 0;
    const std::int64_t rows_per_step = ceil_divide(rows * half, words);
    constexpr std::size_t row_bytes = half * sizeof(float);
    for (std::int64_t word = 0; word < panel; word += half * half) {
      _tile_loadd(4, a + word, row_bytes);
      _tile_loadd(6, b + word, row_bytes);
      _tile_loadd(7, b + panel + word, row_bytes);
      for (std::int64_t i = smaller(rows_per_step, rows_ahead); i > 0; --i, --rows_ahead) {
        __builtin_prefetch(ahead, 0, 2);
        if constexpr (sizeof(C) == sizeof(float)) __builtin_prefetch(ahead + half, 0, 2);
        ahead += output.c_stride;
      }
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + panel + word, row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    const std::size_t target_bytes = static_cast<std::size_t>(target_stride) * sizeof(float);
    _tile_stored(0, target, target_bytes);
    _tile_stored(1, target + half, target_bytes);
    _tile_stored(2, target + half * target_stride, target_bytes);
    _tile_stored(3, target + half * target_stride + half, target_bytes);
  }
};

}  // namespace holdfast::kernels::cpu::HF_ISA
