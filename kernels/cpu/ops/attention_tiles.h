// Code shared by attention forward and backward: small matrix products in registers, packing, and powers of
// two.
//
// Scores are computed for a panel of 48 queries (forward) or keys (backward) side by side in the lanes of
// three vectors, against rows on the other side that are broadcast element by element. So softmax runs down
// the lanes, nothing is reduced across a vector, and the inputs are read in the layout they have in memory.
// Each element of a product is one chain of fma in the order of the depth, whatever the register tile: same
// bits on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

inline constexpr std::int64_t panel_vectors = 3;
inline constexpr std::int64_t panel_width = panel_vectors * vector_lanes;
inline constexpr float log2_e = 1.44269504088896F;
inline constexpr float ln_2 = 0.693147180559945F;

HF_INLINE std::int64_t round_up(std::int64_t count, std::int64_t multiple) {
  return ceil_divide(count, multiple) * multiple;
}

struct AttentionShape {
  std::int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, head_size = 0;

  // Rows of packed heads are whole vectors; the padding is zero.
  std::int64_t padded() const { return round_up(head_size, vector_lanes); }
  std::int64_t group() const { return heads / kv_heads; }
  std::int64_t qkv_stride() const { return (heads + 2 * kv_heads) * head_size; }
  std::int64_t out_stride() const { return heads * head_size; }
  std::int64_t query_offset(std::int64_t b, std::int64_t head) const {
    return b * length * qkv_stride() + head * head_size;
  }
  std::int64_t key_offset(std::int64_t b, std::int64_t kv_head) const {
    return query_offset(b, heads + kv_head);
  }
  std::int64_t value_offset(std::int64_t b, std::int64_t kv_head) const {
    return query_offset(b, heads + kv_heads + kv_head);
  }
  std::int64_t out_offset(std::int64_t b, std::int64_t head) const {
    return b * length * out_stride() + head * head_size;
  }
};
template <typename Op>
AttentionShape shape_of(const Op& op) {
  return {op.batch, op.sequence_length, op.heads, op.kv_heads, op.head_size};
}

// Consecutive keys [begin, end); none when they are equal.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};

// The keys that the queries of one sequence see besides the causal rule (first_key, window and sinks in
// kernels/attention.h). Queries are counted from the first token of the sequence.
struct VisibleKeys {
  const std::int32_t* first_key = nullptr;  // of this sequence; null = all
  std::int64_t length = 0;
  std::int64_t window = 0, sinks = 0;

  // Returns the first key of a query's document. The padding after the last query is of the same one as that
  // query.
  std::int64_t document_of(std::int64_t query) const {
    return first_key == nullptr ? 0 : first_key[smaller(query, length - 1)];
  }
  // Returns the key from which on a query sees all up to itself; of those before it the sinks alone.
  std::int64_t window_of(std::int64_t query) const {
    const std::int64_t document = document_of(query);
    return window == 0 ? document : larger(document, query - window + 1);
  }
  std::int64_t first_of(std::int64_t query) const {
    return sinks > 0 ? document_of(query) : window_of(query);
  }
  // Returns the keys between the sinks and the window that none of the queries [first, last] sees.
  KeyRange gap_of(std::int64_t first, std::int64_t last) const {
    if (sinks == 0) return {};
    const KeyRange gap{document_of(last) + sinks, window_of(first)};
    return gap.begin < gap.end ? gap : KeyRange{};
  }
  // Returns whether the keys [first_key, last_key] are all in the gap of the queries.
  bool are_in_gap(std::int64_t first_query, std::int64_t last_query, std::int64_t first,
                  std::int64_t last) const {
    const KeyRange gap = gap_of(first_query, last_query);
    return gap.begin <= first && last < gap.end;
  }
  // Returns the first query after which none sees one of the keys [first, last]; `length` when the last does.
  std::int64_t end_of_queries(std::int64_t first, std::int64_t last) const {
    const std::int64_t end = end_of_document(last);
    const bool has_sinks = document_of(end - 1) + sinks > first;
    return window == 0 || (sinks > 0 && has_sinks) ? end : smaller(end, last + window);
  }

 private:
  // Returns the first query whose document begins after `key`; `length` when there is none.
  std::int64_t end_of_document(std::int64_t key) const {
    if (first_key == nullptr) return length;
    std::int64_t sees = key, end = length;
    while (sees + 1 < end) {
      const std::int64_t middle = (sees + end) / 2;
      if (first_key[middle] <= key) {
        sees = middle;
      } else {
        end = middle;
      }
    }
    return end;
  }
};
template <typename Op>
VisibleKeys visible_keys(const Op& op, std::int64_t b) {
  return {.first_key = op.first_key == nullptr ? nullptr : op.first_key + b * op.sequence_length,
          .length = op.sequence_length,
          .window = op.window,
          .sinks = op.sinks};
}

// Hands out consecutive pieces of a scratch block, each aligned to a cache line; without a block it only
// counts.
class Pieces {
 public:
  explicit Pieces(std::byte* block) : block_(block) {}
  float* take(std::int64_t floats) {
    std::byte* piece = block_ == nullptr ? nullptr : block_ + bytes_;
    bytes_ += static_cast<std::size_t>(round_up(floats, vector_lanes)) * sizeof(float);
    return reinterpret_cast<float*>(piece);
  }
  BFloat16* take_bf16(std::int64_t count) { return reinterpret_cast<BFloat16*>(take(ceil_divide(count, 2))); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* block_;
  std::size_t bytes_ = 0;
};

// ---- products

// Calls body(0), body(1), ... with compile-time indices, so that arrays indexed by them stay in registers.
template <int count, typename Body>
HF_INLINE void unroll(const Body& body) {
  if constexpr (count > 0) {
    unroll<count - 1>(body);
    body(std::integral_constant<int, count - 1>{});
  }
}

HF_INLINE NativeF32 splat(float value) {
  return value - NativeF32{};
}  // x - 0 is x, also for -0

enum class Start { zero, add, scale };  // the sum starts from 0, C, or C * column_scale

// Arguments of the product C = start + A B, with A (rows x depth), B (depth x 16 vectors), C (rows x 16
// vectors); rows a multiple of 8.
struct Product {
  const float* a = nullptr;
  std::int64_t a_stride = 0;  // between rows of A; if A is transposed, between its columns
  const float* b = nullptr;
  std::int64_t b_stride = 0;
  float* c = nullptr;
  std::int64_t c_stride = 0;
  std::int64_t rows = 0, vectors = 0, depth = 0;
  const float* column_scale = nullptr;
};

// Rows of a register tile: with 32 registers 8 x 3 sums, 3 of B and a broadcast; with 16 half the rows.
inline constexpr int tile_rows = native_lanes == 16 ? 8 : 4;

template <Start start, bool a_transposed, int parts>
HF_INLINE void multiply_tile(const Product& p, const float* a, std::int64_t column, float* c) {
  NativeF32 sum[tile_rows][parts];
  unroll<tile_rows>([&](auto r) __attribute__((always_inline)) {
    unroll<parts>([&](auto v) __attribute__((always_inline)) {
      if constexpr (start == Start::zero) {
        sum[r][v] = NativeF32{};
      } else {
        sum[r][v] = native_load(c + r * p.c_stride + v * native_lanes);
        if constexpr (start == Start::scale)
          sum[r][v] *= native_load(p.column_scale + column + v * native_lanes);
      }
    });
  });
  const float* b = p.b + column;
  const std::int64_t row_step = a_transposed ? 1 : p.a_stride;
  const std::int64_t depth_step = a_transposed ? p.a_stride : 1;
  for (std::int64_t k = 0; k < p.depth; ++k) {
    NativeF32 b_k[parts];
    unroll<parts>([&](auto v) __attribute__((always_inline)) { b_k[v] = native_load(b + v * native_lanes); });
    unroll<tile_rows>([&](auto r) __attribute__((always_inline)) {
      const NativeF32 a_rk = splat(a[r * row_step]);
      unroll<parts>([&](auto v)
                        __attribute__((always_inline)) { sum[r][v] = native_fma(a_rk, b_k[v], sum[r][v]); });
    });
    a += depth_step;
    b += p.b_stride;
  }
  unroll<tile_rows>([&](auto r) __attribute__((always_inline)) {
    unroll<parts>([&](auto v) __attribute__((always_inline)) {
      native_store(c + r * p.c_stride + v * native_lanes, sum[r][v]);
    });
  });
}

template <Start start, bool a_transposed, int parts>
[[gnu::noinline]] void multiply_columns(const Product& p, std::int64_t column) {
  const std::int64_t row_step = a_transposed ? 1 : p.a_stride;
  for (std::int64_t row = 0; row < p.rows; row += tile_rows) {
    multiply_tile<start, a_transposed, parts>(p, p.a + row * row_step, column,
                                              p.c + row * p.c_stride + column);
  }
}

template <Start start, bool a_transposed>
HF_INLINE void multiply(const Product& p) {
  std::int64_t column = 0;
  for (std::int64_t left = p.vectors * native_parts; left > 0;) {
    const std::int64_t parts = left == 4 ? 2 : smaller(left, 3);  // 2 + 2 keeps the pipes fuller than 3 + 1
    if (parts == 3) {
      multiply_columns<start, a_transposed, 3>(p, column);
    } else if (parts == 2) {
      multiply_columns<start, a_transposed, 2>(p, column);
    } else {
      multiply_columns<start, a_transposed, 1>(p, column);
    }
    column += parts * native_lanes;
    left -= parts;
  }
}

// ---- packing

// Packs rows [0, rows) of `source` times `scale` as fp32, padded with zeros to padded_rows x
// round_up(columns, 16).
template <typename T>
void pack_rows(const T* source, std::int64_t source_stride, std::int64_t rows, std::int64_t padded_rows,
               std::int64_t columns, float scale, float* target) {
  const std::int64_t target_stride = round_up(columns, vector_lanes);
  for (std::int64_t row = 0; row < padded_rows; ++row, target += target_stride) {
    if (row < rows) {
      const T* from = source + row * source_stride;
      for_lanes(columns,
                [&](std::int64_t i, auto lanes) { store(target + i, load(from + i, lanes) * scale); });
    } else {
      for (std::int64_t i = 0; i < target_stride; i += vector_lanes) store(target + i, zero());
    }
  }
}

// Converts rows [0, rows) of `source` (as pack_rows writes them) times `scale` to the target's type.
template <typename T>
void unpack_rows(const float* source, std::int64_t rows, std::int64_t columns, float scale, T* target,
                 std::int64_t target_stride) {
  const std::int64_t source_stride = round_up(columns, vector_lanes);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* from = source + row * source_stride;
    T* to = target + row * target_stride;
    for_lanes(columns, [&](std::int64_t i, auto lanes) { store(to + i, load(from + i) * scale, lanes); });
  }
}

// Sets target[column][row] = source[row][column]; rows and columns are multiples of 4.
inline void transpose(const float* source, std::int64_t source_stride, std::int64_t rows,
                      std::int64_t columns, float* target, std::int64_t target_stride) {
  const auto load4 = [](const float* from) __attribute__((always_inline)) {
    F32x4 value;
    __builtin_memcpy(&value, from, sizeof(value));
    return value;
  };
  const auto store4 = [](float* to, F32x4 value) __attribute__((always_inline)) {
    __builtin_memcpy(to, &value, sizeof(value));
  };
  for (std::int64_t row = 0; row < rows; row += 4) {
    for (std::int64_t column = 0; column < columns; column += 4) {
      const float* from = source + row * source_stride + column;
      const F32x4 r0 = load4(from), r1 = load4(from + source_stride);
      const F32x4 r2 = load4(from + 2 * source_stride), r3 = load4(from + 3 * source_stride);
      const F32x4 low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
      const F32x4 high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
      const F32x4 low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
      const F32x4 high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
      float* to = target + column * target_stride + row;
      store4(to, __builtin_shufflevector(low01, low23, 0, 1, 4, 5));
      store4(to + target_stride, __builtin_shufflevector(low01, low23, 2, 3, 6, 7));
      store4(to + 2 * target_stride, __builtin_shufflevector(high01, high23, 0, 1, 4, 5));
      store4(to + 3 * target_stride, __builtin_shufflevector(high01, high23, 2, 3, 6, 7));
    }
  }
}

// ---- functions

// Returns 2^x for x < 128 within 2 ulp (polynomial of Cephes exp2f); 0 below -126; NaN stays NaN. Cheaper
// than exp(): scores include the factor log2(e) already.
HF_INLINE NativeF32 native_exp2(NativeF32 x) {
  constexpr float round_shift =
      12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const NativeF32 shifted = x + splat(round_shift);
  const NativeF32 r = x - (shifted - splat(round_shift));
  NativeF32 p = splat(1.535336188319500e-4F);
  p = native_fma(p, r, splat(1.339887440266574e-3F));
  p = native_fma(p, r, splat(9.618437357674640e-3F));
  p = native_fma(p, r, splat(5.550332471162809e-2F));
  p = native_fma(p, r, splat(2.402264791363012e-1F));
  p = native_fma(p, r, splat(6.931472028550421e-1F));
  p = native_fma(p, r, splat(1.0F));
  const NativeU32 exponent = __builtin_bit_cast(NativeU32, shifted) << 23;
  const NativeF32 scaled = __builtin_bit_cast(NativeF32, __builtin_bit_cast(NativeU32, p) + exponent);
  return x < splat(-126.0F) ? NativeF32{} : scaled;
}
HF_INLINE f32x16 exp2(f32x16 x) {
  return HF_PARTS(f32x16, native_exp2(x.part[p]));
}

// Returns ln x for normal x >= 0 within 2 ulp (Cephes logf); NaN for infinity and NaN.
HF_INLINE NativeF32 native_log(NativeF32 x) {
  const NativeU32 bits = __builtin_bit_cast(NativeU32, x);
  const NativeF32 mantissa = __builtin_bit_cast(NativeF32, (bits & 0x007fffffU) | 0x3f800000U);
  const auto exponent = __builtin_convertvector(__builtin_bit_cast(NativeI32, bits >> 23) - 127, NativeF32);
  const auto is_large = mantissa > splat(1.41421356237F);
  const NativeF32 e = is_large ? exponent + splat(1.0F) : exponent;
  const NativeF32 m = (is_large ? mantissa * splat(0.5F) : mantissa) - splat(1.0F);
  const NativeF32 square = m * m;
  NativeF32 p = splat(7.0376836292e-2F);
  p = native_fma(p, m, splat(-1.1514610310e-1F));
  p = native_fma(p, m, splat(1.1676998740e-1F));
  p = native_fma(p, m, splat(-1.2420140846e-1F));
  p = native_fma(p, m, splat(1.4249322787e-1F));
  p = native_fma(p, m, splat(-1.6668057665e-1F));
  p = native_fma(p, m, splat(2.0000714765e-1F));
  p = native_fma(p, m, splat(-2.4999993993e-1F));
  p = native_fma(p, m, splat(3.3333331174e-1F));
  p = p * m * square;
  p = native_fma(e, splat(-2.12194440e-4F), p);  // ln 2 in two parts
  p = native_fma(square, splat(-0.5F), p);
  return native_fma(e, splat(0.693359375F), m + p) + (x - x);  // x - x is NaN where x is infinite or NaN
}
HF_INLINE f32x16 log(f32x16 x) {
  return HF_PARTS(f32x16, native_log(x.part[p]));
}

}  // namespace holdfast::kernels::cpu::HF_ISA
