// Sixteen-lane vectors for the files of kernels/cpu/ops, which are compiled per instruction set (HF_ISA).
//
// THE RULE: every function here gives the same bits on all of them: lane counts, trees and orders are fixed,
// every fused multiply-add is written as fma() (the compiler is told to make none of its own), and nothing is
// approximate hardware. Exception: the payload of a NaN. Denormal results of exp() are flushed to zero;
// nothing else flushes.
//
//   for_lanes(count, [&](std::int64_t i, auto lanes) {  // one body for whole vectors and for the tail
//     store(y + i, fma(load(a + i, lanes), scale, load(b + i, lanes)), lanes);
//   });
//
// Tail lanes are loaded as zero and not stored. Pointers need no alignment; float and BFloat16 memory look
// the same (stores to BFloat16 round to nearest even).
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "runtime/core/tensor.h"

namespace holdfast::kernels::cpu::HF_ISA {

#define HF_INLINE [[gnu::always_inline]] inline

#if defined(__AVX512F__)
inline constexpr int native_lanes = 16;
#elif defined(__AVX2__)
inline constexpr int native_lanes = 8;
#else
inline constexpr int native_lanes = 4;
#endif
inline constexpr int native_parts = 16 / native_lanes;
inline constexpr int vector_lanes = 16;

typedef float NativeF32 __attribute__((vector_size(native_lanes * 4)));
typedef double NativeF64 __attribute__((vector_size(native_lanes * 4)));
typedef std::uint32_t NativeU32 __attribute__((vector_size(native_lanes * 4)));
typedef std::uint64_t NativeU64 __attribute__((vector_size(native_lanes * 4)));
typedef std::int32_t NativeI32 __attribute__((vector_size(native_lanes * 4)));
typedef std::uint16_t NativeU16 __attribute__((vector_size(native_lanes * 2)));
typedef std::uint16_t NativeU16Pair __attribute__((vector_size(native_lanes * 4)));

// Lane i is element i % native_lanes of part[i / native_lanes].
struct f32x16 {
  NativeF32 part[native_parts];
};
struct f64x8 {
  NativeF64 part[native_parts];
};
// Lane i has the bits of two lanes of an f32x16: 2 i in its low half and 2 i + 1 in its high half.
struct u64x8 {
  NativeU64 part[native_parts];
};

// Makes a vector part by part; written out because the optimizer keeps no looped-over array in registers.
template <typename V, typename Part>
HF_INLINE V make(const Part& of) {
  if constexpr (native_parts == 1) {
    return V{{of(0)}};
  } else if constexpr (native_parts == 2) {
    return V{{of(0), of(1)}};
  } else {
    return V{{of(0), of(1), of(2), of(3)}};
  }
}
#define HF_PARTS(V, expression) make<V>([&](int p) __attribute__((always_inline)) { return expression; })

// ---- arithmetic
// -----------------------------------------------------------------------------------------------------

// Adds minus zero, not plus zero: it preserves every value, including -0.
HF_INLINE f32x16 broadcast(float value) {
  return HF_PARTS(f32x16, (static_cast<void>(p), value - NativeF32{}));
}
HF_INLINE f64x8 broadcast_f64(double value) {
  return HF_PARTS(f64x8, (static_cast<void>(p), value - NativeF64{}));
}
HF_INLINE f32x16 zero() {
  return HF_PARTS(f32x16, (static_cast<void>(p), NativeF32{}));
}
HF_INLINE f64x8 zero_f64() {
  return HF_PARTS(f64x8, (static_cast<void>(p), NativeF64{}));
}

HF_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
  return HF_PARTS(f32x16, a.part[p] + b.part[p]);
}
HF_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
  return HF_PARTS(f32x16, a.part[p] - b.part[p]);
}
HF_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
  return HF_PARTS(f32x16, a.part[p] * b.part[p]);
}
HF_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
  return HF_PARTS(f32x16, a.part[p] / b.part[p]);
}
HF_INLINE f32x16 operator-(f32x16 a) {
  return HF_PARTS(f32x16, -a.part[p]);
}
HF_INLINE f32x16 operator+(f32x16 a, float b) {
  return a + broadcast(b);
}
HF_INLINE f32x16 operator-(f32x16 a, float b) {
  return a - broadcast(b);
}
HF_INLINE f32x16 operator*(f32x16 a, float b) {
  return a * broadcast(b);
}
HF_INLINE f64x8 operator+(f64x8 a, f64x8 b) {
  return HF_PARTS(f64x8, a.part[p] + b.part[p]);
}

#if defined(__AVX512F__)
HF_INLINE NativeF32 native_fma(NativeF32 a, NativeF32 b, NativeF32 c) {
  return _mm512_fmadd_ps(a, b, c);
}
HF_INLINE NativeF64 native_fma(NativeF64 a, NativeF64 b, NativeF64 c) {
  return _mm512_fmadd_pd(a, b, c);
}
HF_INLINE NativeF32 native_sqrt(NativeF32 a) {
  return _mm512_maskz_sqrt_ps(0xffff, a);
}
#elif defined(__AVX2__)
HF_INLINE NativeF32 native_fma(NativeF32 a, NativeF32 b, NativeF32 c) {
  return _mm256_fmadd_ps(a, b, c);
}
HF_INLINE NativeF64 native_fma(NativeF64 a, NativeF64 b, NativeF64 c) {
  return _mm256_fmadd_pd(a, b, c);
}
HF_INLINE NativeF32 native_sqrt(NativeF32 a) {
  return _mm256_sqrt_ps(a);
}
#else
HF_INLINE NativeF32 native_fma(NativeF32 a, NativeF32 b, NativeF32 c) {
  return NativeF32{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
                   __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
}
HF_INLINE NativeF64 native_fma(NativeF64 a, NativeF64 b, NativeF64 c) {
  return NativeF64{__builtin_fma(a[0], b[0], c[0]), __builtin_fma(a[1], b[1], c[1])};
}
HF_INLINE NativeF32 native_sqrt(NativeF32 a) {
  return NativeF32{__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]),
                   __builtin_sqrtf(a[3])};
}
#endif

// Returns a * b + c, rounded once.
HF_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return HF_PARTS(f32x16, native_fma(a.part[p], b.part[p], c.part[p]));
}
HF_INLINE f32x16 fma(f32x16 a, float b, f32x16 c) {
  return fma(a, broadcast(b), c);
}
HF_INLINE f64x8 fma(f64x8 a, f64x8 b, f64x8 c) {
  return HF_PARTS(f64x8, native_fma(a.part[p], b.part[p], c.part[p]));
}
HF_INLINE f32x16 sqrt(f32x16 a) {
  return HF_PARTS(f32x16, native_sqrt(a.part[p]));
}

// Returns a < b ? yes : no, lane by lane; a NaN compares false.
HF_INLINE f32x16 if_less(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
  return HF_PARTS(f32x16, a.part[p] < b.part[p] ? yes.part[p] : no.part[p]);
}
HF_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return if_less(b, a, a, b);
}  // b when either is a NaN
HF_INLINE f32x16 abs(f32x16 a) {
  return HF_PARTS(f32x16,
                  __builtin_bit_cast(NativeF32, __builtin_bit_cast(NativeU32, a.part[p]) & 0x7fffffffU));
}

// ---- integers
// -------------------------------------------------------------------------------------------------------

HF_INLINE u64x8 zero_u64() {
  return HF_PARTS(u64x8, (static_cast<void>(p), NativeU64{}));
}
HF_INLINE u64x8 broadcast_u64(std::uint64_t value) {
  return HF_PARTS(u64x8, (static_cast<void>(p), value + NativeU64{}));
}
HF_INLINE u64x8 load_u64(const std::uint64_t* from) {
  const auto native = [from](int p) __attribute__((always_inline)) {
    NativeU64 value;
    __builtin_memcpy(&value, from + p * (native_lanes / 2), sizeof(value));
    return value;
  };
  return make<u64x8>(native);
}
HF_INLINE u64x8 bits_of(f32x16 a) {
  return HF_PARTS(u64x8, __builtin_bit_cast(NativeU64, a.part[p]));
}
HF_INLINE u64x8 operator+(u64x8 a, u64x8 b) {
  return HF_PARTS(u64x8, a.part[p] + b.part[p]);
}
// Returns the high half of each lane, in the low half.
HF_INLINE u64x8 high_of(u64x8 a) {
  return HF_PARTS(u64x8, a.part[p] >> 32);
}
// Returns the products of the low halves of the lanes of a native vector, in 64 bits.
HF_INLINE NativeU64 native_low_product(NativeU64 a, NativeU64 b) {
#if defined(__AVX512F__)
  return __builtin_bit_cast(NativeU64, _mm512_maskz_mul_epu32(0xff, __builtin_bit_cast(__m512i, a),
                                                              __builtin_bit_cast(__m512i, b)));
#elif defined(__AVX2__)
  return __builtin_bit_cast(NativeU64,
                            _mm256_mul_epu32(__builtin_bit_cast(__m256i, a), __builtin_bit_cast(__m256i, b)));
#else
  constexpr std::uint64_t low = 0xffffffffU;
  return (a & low) * (b & low);
#endif
}
// Returns the products of the low halves of the lanes, in 64 bits.
HF_INLINE u64x8 low_product(u64x8 a, u64x8 b) {
  return HF_PARTS(u64x8, native_low_product(a.part[p], b.part[p]));
}

// ---- memory
// ---------------------------------------------------------------------------------------------------------

struct AllLanes {
  static constexpr int count = vector_lanes;
};
struct FirstLanes {
  int count = 0;  // in [0, vector_lanes]
};

HF_INLINE NativeF32 native_load(const float* from) {
  NativeF32 value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}
HF_INLINE NativeU32 widen(NativeU16 bits) {
#if defined(__AVX512F__)
  return __builtin_bit_cast(NativeU32,
                            _mm512_maskz_cvtepu16_epi32(0xffff, __builtin_bit_cast(__m256i, bits)));
#elif defined(__AVX2__)
  return __builtin_bit_cast(NativeU32, _mm256_cvtepu16_epi32(__builtin_bit_cast(__m128i, bits)));
#else
  return __builtin_convertvector(bits, NativeU32);
#endif
}
HF_INLINE NativeU16 high_halves(NativeU32 bits) {
#if defined(__AVX512BW__)
  constexpr NativeU16Pair odd = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  const __m512i halves = _mm512_maskz_permutexvar_epi16(~0U, __builtin_bit_cast(__m512i, odd),
                                                        __builtin_bit_cast(__m512i, bits));
  NativeU16 low;
  __builtin_memcpy(&low, &halves, sizeof(low));
  return low;
#else
  return __builtin_convertvector(bits >> 16, NativeU16);
#endif
}
HF_INLINE NativeF32 native_load(const BFloat16* from) {
  NativeU16 bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  return __builtin_bit_cast(NativeF32, widen(bits) << 16);
}
HF_INLINE void native_store(float* to, NativeF32 value) {
  __builtin_memcpy(to, &value, sizeof(value));
}
// Rounds as to_bfloat16() of tensor.h does.
HF_INLINE NativeU16 round_to_bfloat16(NativeF32 value) {
  const NativeU32 bits = __builtin_bit_cast(NativeU32, value);
  const NativeU32 rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  const NativeU32 quiet = bits | 0x00400000U;
  return high_halves(value == value ? rounded : quiet);
}
HF_INLINE void native_store(BFloat16* to, NativeF32 value) {
  const NativeU16 halves = round_to_bfloat16(value);
  __builtin_memcpy(&to->bits, &halves, sizeof(halves));
}

template <typename T>
HF_INLINE f32x16 load(const T* from) {
  return HF_PARTS(f32x16, native_load(from + p * native_lanes));
}
template <typename T>
HF_INLINE void store(T* to, f32x16 value) {
  native_store(to, value.part[0]);
  if constexpr (native_parts > 1) native_store(to + native_lanes, value.part[1]);
  if constexpr (native_parts > 2) {
    native_store(to + 2 * native_lanes, value.part[2]);
    native_store(to + 3 * native_lanes, value.part[3]);
  }
}
template <typename T>
HF_INLINE f32x16 load(const T* from, AllLanes) {
  return load(from);
}
template <typename T>
HF_INLINE void store(T* to, f32x16 value, AllLanes) {
  store(to, value);
}

#if defined(__AVX512F__)
HF_INLINE __mmask16 mask_of(FirstLanes lanes) {
  return static_cast<__mmask16>((1U << lanes.count) - 1U);
}
HF_INLINE f32x16 load(const float* from, FirstLanes lanes) {
  return f32x16{{_mm512_maskz_loadu_ps(mask_of(lanes), from)}};
}
HF_INLINE f32x16 load(const BFloat16* from, FirstLanes lanes) {
  const __m256i bits = _mm256_maskz_loadu_epi16(mask_of(lanes), from);
  return f32x16{{__builtin_bit_cast(NativeF32, widen(__builtin_bit_cast(NativeU16, bits)) << 16)}};
}
HF_INLINE void store(float* to, f32x16 value, FirstLanes lanes) {
  _mm512_mask_storeu_ps(to, mask_of(lanes), value.part[0]);
}
HF_INLINE void store(BFloat16* to, f32x16 value, FirstLanes lanes) {
  const NativeU16 halves = round_to_bfloat16(value.part[0]);
  _mm256_mask_storeu_epi16(to, mask_of(lanes), __builtin_bit_cast(__m256i, halves));
}
#else
template <typename T>
HF_INLINE f32x16 load(const T* from, FirstLanes lanes) {
  T buffer[vector_lanes] = {};
  for (int i = 0; i < lanes.count; ++i) buffer[i] = from[i];
  return load(buffer);
}
template <typename T>
HF_INLINE void store(T* to, f32x16 value, FirstLanes lanes) {
  T buffer[vector_lanes];
  store(buffer, value);
  for (int i = 0; i < lanes.count; ++i) to[i] = buffer[i];
}
#endif

// Calls body(i, lanes) for i = 0, 16, 32, ... below count; `lanes` is AllLanes, or FirstLanes for the tail.
template <typename Body>
HF_INLINE void for_lanes(std::int64_t count, const Body& body) {
  std::int64_t i = 0;
  for (; i + vector_lanes <= count; i += vector_lanes) body(i, AllLanes{});
  if (i < count) body(i, FirstLanes{static_cast<int>(count - i)});
}

// Streaming stores bypass the caches: a line that is written whole is not read first, which saves a third of
// a copy's traffic and half of a fill's. They are for memory that is not read again soon; `to` must be
// stream_aligned(). The streaming thread calls stream_fence() before another thread may read.
HF_INLINE bool stream_aligned(const void* to) {
  return __builtin_bit_cast(std::uintptr_t, to) % 64 == 0;
}
HF_INLINE void native_stream(float* to, NativeF32 value) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, value);
#elif defined(__AVX2__)
  _mm256_stream_ps(to, value);
#else
  native_store(to, value);
#endif
}
HF_INLINE void native_stream(BFloat16* to, NativeU16 halves) {
#if defined(__AVX512F__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), __builtin_bit_cast(__m256i, halves));
#elif defined(__AVX2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), __builtin_bit_cast(__m128i, halves));
#else
  __builtin_memcpy(&to->bits, &halves, sizeof(halves));
#endif
}
HF_INLINE void native_stream(BFloat16* to, NativeF32 value) {
  native_stream(to, round_to_bfloat16(value));
}
template <typename T>
HF_INLINE void stream(T* to, f32x16 value, AllLanes) {
  native_stream(to, value.part[0]);
  if constexpr (native_parts > 1) native_stream(to + native_lanes, value.part[1]);
  if constexpr (native_parts > 2) {
    native_stream(to + 2 * native_lanes, value.part[2]);
    native_stream(to + 3 * native_lanes, value.part[3]);
  }
}
template <typename T>
HF_INLINE void stream(T* to, f32x16 value, FirstLanes lanes) {
  store(to, value, lanes);
}
HF_INLINE void stream_fence() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

// Prefetches the cache line of an address that will be read soon, or (into the second-level cache) in a
// while; any address will do. Processors prefetch on their own only inside a page, and slowly at its start.
HF_INLINE void prefetch(const void* address) {
  __builtin_prefetch(address);
}
HF_INLINE void prefetch_far(const void* address) {
  __builtin_prefetch(address, 0, 2);
}

// Loads eight floats, widened.
HF_INLINE f64x8 load_f64(const float* from) {
  typedef float Half __attribute__((vector_size(native_lanes * 2)));
  const auto widen = [from](int p) __attribute__((always_inline)) {
    Half half;
    __builtin_memcpy(&half, from + p * (native_lanes / 2), sizeof(half));
    return __builtin_convertvector(half, NativeF64);
  };
  return make<f64x8>(widen);
}

// Returns 0, 1, 2, ... 15.
HF_INLINE f32x16 lane_index() {
  constexpr float index[vector_lanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(index);
}

// Returns the value with the lanes from `lanes.count` on replaced by `other`.
HF_INLINE f32x16 keep(f32x16 value, AllLanes, float) {
  return value;
}
HF_INLINE f32x16 keep(f32x16 value, FirstLanes lanes, float other) {
  return if_less(lane_index(), broadcast(static_cast<float>(lanes.count)), value, broadcast(other));
}

// ---- reductions: lanes i and i + 8, then i and i + 4, then i and i + 2, then i and i + 1
// ------------------------------

typedef float F32x4 __attribute__((vector_size(16)));

template <typename Op>
HF_INLINE float reduce(f32x16 value, const Op& op) {
  F32x4 quarter[4];
  __builtin_memcpy(quarter, &value, sizeof(value));
  const F32x4 four = op(op(quarter[0], quarter[2]), op(quarter[1], quarter[3]));
  const F32x4 two = op(four, __builtin_shufflevector(four, four, 2, 3, 2, 3));
  return op(two, __builtin_shufflevector(two, two, 1, 1, 1, 1))[0];
}
HF_INLINE float reduce_add(f32x16 value) {
  return reduce(
      value, [](F32x4 a, F32x4 b) __attribute__((always_inline)) { return a + b; });
}
HF_INLINE float reduce_max(f32x16 value) {
  return reduce(
      value, [](F32x4 a, F32x4 b) __attribute__((always_inline)) { return b < a ? a : b; });
}
HF_INLINE double reduce_add(f64x8 value) {
  double v[8];
  __builtin_memcpy(v, &value, sizeof(value));
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
HF_INLINE std::uint64_t reduce_add(u64x8 value) {
  std::uint64_t v[8];
  __builtin_memcpy(v, &value, sizeof(value));
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// ---- functions
// ------------------------------------------------------------------------------------------------------

// Returns e^x within 2 ulp, for softmax and sigmoid: zero where e^x is below the smallest normal float (so at
// -inf), e^87 (6e37) where x is larger than 87; NaN stays NaN. x = n ln 2 + r, e^r = 1 + r + r^2 q(r) with
// the polynomial that meets it in the Chebyshev nodes of |r| <= ln 2 / 2 (relative error 8e-9), times 2^n.
HF_INLINE NativeF32 native_exp(NativeF32 x) {
  constexpr float smallest_x = -87.3365402F;  // e^x >= smallest normal float
  constexpr float largest_x = 87.0F;
  constexpr float round_shift =
      12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const auto all = [](float value) __attribute__((always_inline)) {
    return value - NativeF32{};
  };
  x = largest_x < x ? all(largest_x) : x;
  const NativeF32 shifted = native_fma(x, all(1.44269504088896F), all(round_shift));
  const NativeF32 n = shifted - round_shift;
  NativeF32 r = native_fma(n, all(-0.693359375F), x);  // ln 2 in two parts
  r = native_fma(n, all(2.12194440e-4F), r);
  const NativeF32 r2 = r * r;
  const NativeF32 q01 = native_fma(r, all(1.6666577756e-1F), all(0.5F));
  const NativeF32 q23 = native_fma(r, all(8.3631733432e-3F), all(4.1666556150e-2F));
  const NativeF32 q = native_fma(native_fma(r2, all(1.3926175889e-3F), q23), r2, q01);
  const NativeF32 p = native_fma(q, r2, r) + 1.0F;
  // The factor is 2^n, made from its bits; the shift drops the bits of round_shift.
  const NativeU32 power = (__builtin_bit_cast(NativeU32, shifted) << 23) + 0x3f800000U;
  const NativeF32 scaled = p * __builtin_bit_cast(NativeF32, power);
  return x < smallest_x ? NativeF32{} : scaled;
}
HF_INLINE f32x16 exp(f32x16 x) {
  return HF_PARTS(f32x16, native_exp(x.part[p]));
}

// Holds sigmoid(x) = 1 / (1 + e^-x) and sigmoid(-x) = 1 - sigmoid(x), both without cancellation; sigmoid(x)
// is zero where e^-x saturates.
struct SigmoidPair {
  f32x16 of_x;
  f32x16 of_minus_x;
};
HF_INLINE SigmoidPair sigmoid_pair(f32x16 x) {
  const f32x16 minus_x = -x;
  const f32x16 power = exp(minus_x);
  const f32x16 inverse = broadcast(1.0F) / (power + 1.0F);
  return {if_less(broadcast(87.0F), minus_x, zero(), inverse), power * inverse};
}
HF_INLINE f32x16 sigmoid(f32x16 x) {
  return sigmoid_pair(x).of_x;
}

// GELU's (1 + tanh u) / 2 is sigmoid(2 u), with 2 u = scale * (x + cubic x^3).
HF_INLINE f32x16 gelu_twice_u(f32x16 x) {
  constexpr float scale = 1.5957691216057308F, cubic = 0.044715F;  // 2 sqrt(2 / pi)
  return x * scale * fma(x * x, cubic, broadcast(1.0F));
}
HF_INLINE f32x16 gelu(f32x16 x) {
  return x * sigmoid(gelu_twice_u(x));
}
HF_INLINE f32x16 gelu_slope(f32x16 x) {
  constexpr float scale = 1.5957691216057308F, three_cubic = 0.134145F;
  const SigmoidPair s = sigmoid_pair(gelu_twice_u(x));
  const f32x16 slope_of_twice_u = fma(x * x, three_cubic, broadcast(1.0F)) * scale;
  return fma(s.of_x * s.of_minus_x * x, slope_of_twice_u, s.of_x);  // zero meets x first: no 0 * infinity
}

// ---- dispatch
// -------------------------------------------------------------------------------------------------------

// Calls body(float{}) or body(BFloat16{}), by the type of an op's tensors: `using T = decltype(element)`.
template <typename Body>
HF_INLINE void for_dtype(DType dtype, const Body& body) {
  if (dtype == DType::bf16) {
    body(BFloat16{});
  } else {
    body(float{});
  }
}

}  // namespace holdfast::kernels::cpu::HF_ISA
