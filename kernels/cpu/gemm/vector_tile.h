// The tile of a matrix product that vector instructions compute: rows x columns sums in registers.
//
// Bits: an output element is the chain fma(a[d], b[d], sum) over the depth of one chunk, from zero; the
// chunks are added to the bias in order, and the residual last; or the sum is multiplied by GELU's derivative.
// Which tile, thread or instruction set computed it cannot change it.
#pragma once

#include "kernels/cpu/gemm/panels.h"

namespace holdfast::kernels::cpu::HF_ISA {

// Target of a tile's sums: c = base + sum + residual, or (base + sum) * the derivative of GELU at gelu_of, for
// `rows` x `columns` elements that exist.
template <typename C>
struct TileOutput {
  const float* base = nullptr;   // or null
  std::int64_t base_stride = 0;  // 0: one row for all (a bias)
  const C* residual = nullptr;   // in rows of c_stride, or null
  const C* gelu_of = nullptr;    // likewise; not together with a residual
  C* c = nullptr;
  std::int64_t c_stride = 0;
  C* c_ahead = nullptr;  // target of the next tile's sums, or null
  std::int64_t rows = 0, columns = 0;
};

// Multiplies the sums of a tile by the derivative of GELU: from memory, because it takes the registers that sums
// are in, and without gaps, so that no vector is cut off at the end of a row.
template <int count>
[[gnu::noinline]] void multiply_by_slopes(float* sums, const float* gelu_of) {
  static_assert(count % vector_lanes == 0);
  for (int i = 0; i < count; i += vector_lanes)
    store(sums + i, load(sums + i) * gelu_slope(load(gelu_of + i)));
}

// Writes sums from memory, where a tile is cut off by the matrix's edge.
template <typename C>
[[gnu::noinline]] void write_sums(const float* sums, std::int64_t stride, const TileOutput<C>& output) {
  const auto write = [&](const auto& finish) __attribute__((always_inline)) {
    for (std::int64_t row = 0; row < output.rows; ++row) {
      const float* base = output.base + row * output.base_stride;
      const std::int64_t first = row * output.c_stride;
      for_lanes(output.columns, [&](std::int64_t i, auto some) {
        f32x16 value = load(sums + row * stride + i, some);
        if (output.base != nullptr) value = load(base + i, some) + value;
        store(output.c + first + i, finish(value, first + i, some), some);
      });
    }
  };
  if (const C* const x = output.gelu_of; x != nullptr) {
    write([x](f32x16 value, std::int64_t i, auto some) { return value * gelu_slope(load(x + i, some)); });
  } else if (const C* const residual = output.residual; residual != nullptr) {
    write([residual](f32x16 value, std::int64_t i, auto some) { return value + load(residual + i, some); });
  } else {
    write([](f32x16 value, std::int64_t, auto) { return value; });
  }
}

struct MultiplyValues {
  HF_INLINE static NativeF32 broadcast_word(const float* word) { return *word - NativeF32{}; }
  HF_INLINE static NativeF32 multiply_add(NativeF32 a, NativeF32 b, NativeF32 sum) {
    return native_fma(a, b, sum);
  }
};

#if defined(__AVX512BF16__)
struct MultiplyPairs {
  HF_INLINE static NativeF32 broadcast_word(const float* word) {
    std::int32_t bits;
    __builtin_memcpy(&bits, word, sizeof(bits));
    return __builtin_bit_cast(NativeF32, _mm512_set1_epi32(bits));
  }
  HF_INLINE static NativeF32 multiply_add(NativeF32 a, NativeF32 b, NativeF32 sum) {
    return _mm512_dpbf16_ps(sum, __builtin_bit_cast(__m512bh, a), __builtin_bit_cast(__m512bh, b));
  }
};
#endif

template <typename WordsType, typename Multiply>
struct VectorTile {
  using Words = WordsType;
  using Element = typename Words::Element;
  // 24 sums and 3 vectors of B in 32 registers; 12 and 3 in 16.
  static constexpr int vectors = 3;
  static constexpr int rows = lanes == 16 ? 8 : 4;
  static constexpr int columns = vectors * lanes;
  static constexpr int row_step = lanes;  // rows that are packed together
  static constexpr int depth_unit = Words::depth_per_word;
  static constexpr std::int64_t chunk = 512 * Words::depth_per_word;  // depth of one chain of sums

  static void enter() {}
  static void leave() {}

  static void pack_rows(const Operand<Element>& a, std::int64_t first, std::int64_t count, std::int64_t begin,
                        std::int64_t depth, std::int64_t words, float* panels) {
    pack_panels<Words, rows>(a, first, count, begin, depth, words, panels);
  }
  static void pack_columns(const Operand<Element>& b, std::int64_t first, std::int64_t count,
                           std::int64_t begin, std::int64_t depth, std::int64_t words, float* panels) {
    pack_panels<Words, columns>(b, first, count, begin, depth, words, panels);
  }

  // Computes one tile from a panel of A and one of B.
  template <typename C>
  static void run(std::int64_t words, const float* a, const float* b, const TileOutput<C>& output) {
    if (output.columns > 2 * lanes) return run_vectors<3>(words, a, b, output);
    if (output.columns > lanes) return run_vectors<2>(words, a, b, output);
    return run_vectors<1>(words, a, b, output);
  }

 private:
  template <int used, typename C>
  [[gnu::noinline]] static void run_vectors(std::int64_t words, const float* a, const float* b,
                                            const TileOutput<C>& output) {
    // Prefetches what is read at the end: its rows are far apart, which processors do not foresee.
    if (const C* const read = output.gelu_of != nullptr ? output.gelu_of : output.residual; read != nullptr) {
      for (std::int64_t row = 0; row < output.rows; ++row) {
        for (std::int64_t i = 0; i < output.columns; i += 64 / sizeof(C))
          prefetch(read + row * output.c_stride + i);
      }
    }
    NativeF32 sums[rows][used] = {};
    // Two steps of the depth for each test and jump: 4 to 9 % faster than one on a Zen 3, four are slower again.
#pragma GCC unroll 2
    for (std::int64_t word = 0; word < words; ++word) {
      NativeF32 b_vectors[used];
#pragma GCC unroll 3
      for (int v = 0; v < used; ++v) b_vectors[v] = native_load(b + v * lanes);
#pragma GCC unroll 8
      for (int row = 0; row < rows; ++row) {
        const NativeF32 a_word = Multiply::broadcast_word(a + row);
#pragma GCC unroll 3
        for (int v = 0; v < used; ++v) {
          sums[row][v] = Multiply::multiply_add(a_word, b_vectors[v], sums[row][v]);
        }
      }
      a += rows;
      b += columns;
    }
    if (output.rows == rows && output.columns == used * lanes) {
      // One test for the tile, and strides in registers: beside a short chain of sums, tests show for each vector.
      const auto for_vectors = [&](std::int64_t stride, const auto& visit) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 3
          for (int v = 0; v < used; ++v) visit(sums[row][v], row * stride + v * lanes);
        }
      };
      if (const float* const base = output.base; base != nullptr) {
        for_vectors(output.base_stride,
                    [base](NativeF32& sum, std::int64_t i) { sum = native_load(base + i) + sum; });
      }
      if (const C* const x = output.gelu_of; x != nullptr) {
        constexpr int count = rows * used * lanes;
        alignas(64) float memory[count], inputs[count];
        float *to = memory, *input_to = inputs;
        for_vectors(output.c_stride, [x, &to, &input_to](NativeF32 sum, std::int64_t i) {
          native_store(to, sum);
          native_store(input_to, native_load(x + i));
          to += lanes;
          input_to += lanes;
        });
        multiply_by_slopes<count>(memory, inputs);
        const float* from = memory;
        for_vectors(0, [&from](NativeF32& sum, std::int64_t) {
          sum = native_load(from);
          from += lanes;
        });
      } else if (const C* const residual = output.residual; residual != nullptr) {
        for_vectors(output.c_stride,
                    [residual](NativeF32& sum, std::int64_t i) { sum = sum + native_load(residual + i); });
      }
      for_vectors(output.c_stride,
                  [c = output.c](NativeF32 sum, std::int64_t i) { native_store(c + i, sum); });
    } else {
      alignas(64) float memory[rows * columns];
#pragma GCC unroll 8
      for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 3
        for (int v = 0; v < used; ++v) native_store(memory + row * columns + v * lanes, sums[row][v]);
      }
      write_sums(memory, columns, output);
    }
  }
};

}  // namespace holdfast::kernels::cpu::HF_ISA
