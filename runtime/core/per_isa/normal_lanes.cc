// Compiled once per instruction set (HF_ISA), so nothing here calls a function of another header: the linker
// keeps one copy of an inline function, and it could be one that this processor cannot run.
//
// The functions are those of runtime/core/random.cc with their branches turned into selections: of two values
// the one that is not wanted is thrown away, and what is exact (conversion of integers, factors 1 and -1) is
// done in the way that vectors can.
#include "runtime/core/normal_lanes.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace holdfast::core::HF_ISA {
namespace {

#define HF_INLINE [[gnu::always_inline]] inline

#if defined(__AVX512F__)
constexpr int lanes = 8;
#elif defined(__AVX2__)
constexpr int lanes = 4;
#else
constexpr int lanes = 2;
#endif
static_assert(normal_lanes % lanes == 0);

typedef std::uint64_t Words __attribute__((vector_size(lanes * 8)));
typedef double Reals __attribute__((vector_size(lanes * 8)));
typedef float Values __attribute__((vector_size(lanes * 4)));

#if defined(__AVX512F__)
HF_INLINE Words multiply_low_halves(Words a, Words b) {
  return __builtin_bit_cast(
      Words, _mm512_maskz_mul_epu32(0xff, __builtin_bit_cast(__m512i, a), __builtin_bit_cast(__m512i, b)));
}
HF_INLINE Reals sqrt(Reals x) {
  return _mm512_maskz_sqrt_pd(0xff, x);
}
#elif defined(__AVX2__)
HF_INLINE Words multiply_low_halves(Words a, Words b) {
  return __builtin_bit_cast(Words,
                            _mm256_mul_epu32(__builtin_bit_cast(__m256i, a), __builtin_bit_cast(__m256i, b)));
}
HF_INLINE Reals sqrt(Reals x) {
  return _mm256_sqrt_pd(x);
}
#else
HF_INLINE Words multiply_low_halves(Words a, Words b) {
  return (a & 0xffffffffU) * (b & 0xffffffffU);
}
HF_INLINE Reals sqrt(Reals x) {
  return Reals{__builtin_sqrt(x[0]), __builtin_sqrt(x[1])};
}
#endif

HF_INLINE Words all_lanes(std::uint64_t value) {
  return value - Words{};
}

// Exact for words up to 2^53: the halves become mantissas of 2^52 and 2^84, and the sum needs no rounding.
HF_INLINE Reals to_reals(Words words) {
  const Words low = (words & 0xffffffffU) | 0x4330000000000000U;
  const Words high = (words >> 32) | 0x4530000000000000U;
  return (__builtin_bit_cast(Reals, high) - 0x1p84) + (__builtin_bit_cast(Reals, low) - 0x1p52);
}

struct Uniforms {
  Reals radius;  // (0, 1]
  Reals turns;   // [0, 1)
};

// Philox4x32-10 in 64-bit lanes, of which only the low halves count until the end.
HF_INLINE Uniforms uniforms_of(Words element, std::uint64_t key) {
  Words c0 = element, c1 = element >> 32, c2 = all_lanes(1), c3 = all_lanes(0);  // 1: the normal domain
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Words p0 = multiply_low_halves(c0, all_lanes(0xd2511f53U));
    const Words p1 = multiply_low_halves(c2, all_lanes(0xcd9e8d57U));
    c0 = (p1 >> 32) ^ c1 ^ std::uint64_t{k0};
    c1 = p1;
    c2 = (p0 >> 32) ^ c3 ^ std::uint64_t{k1};
    c3 = p0;
    k0 += 0x9e3779b9U;
    k1 += 0xbb67ae85U;
  }
  const Words first = (c1 << 32) | (c0 & 0xffffffffU);
  const Words second = (c3 << 32) | (c2 & 0xffffffffU);
  return {.radius = to_reals((first >> 11) + 1U) * 0x1p-53, .turns = to_reals(second >> 11) * 0x1p-53};
}

HF_INLINE Reals log(Reals x) {
  const Words bits = __builtin_bit_cast(Words, x);
  Reals exponent = to_reals(bits >> 52) - 1023.0;
  Reals m = __builtin_bit_cast(Reals, (bits & 0x000fffffffffffffU) | 0x3ff0000000000000U);
  const auto large = m >= 1.4142135623730951;
  m = large ? m * 0.5 : m;
  exponent = large ? exponent + 1.0 : exponent;
  const Reals s = (m - 1.0) / (m + 1.0);
  const Reals s2 = s * s;
  Reals series = {};
  for (int n = 21; n >= 3; n -= 2) series = (series + 1.0 / n) * s2;
  return exponent * 0.6931471805599453 + 2.0 * (s + s * series);
}

// The series of cosine and sine differ only in their divisors.
HF_INLINE Reals cos_of_turns(Reals turns) {
  const Reals one = 1.0 - Reals{};
  turns = turns > 0.5 ? 1.0 - turns : turns;
  const auto negative = turns > 0.25;
  turns = negative ? 0.5 - turns : turns;
  const auto by_sine = turns > 0.125;
  const Reals x = 6.283185307179586 * (by_sine ? 0.25 - turns : turns);
  const Reals x2 = x * x;
  Reals sum = one;
  for (int n = 18; n >= 2; n -= 2) {
    const Reals divisor = by_sine ? (n + 1.0) * n * one : n * (n - 1.0) * one;
    sum = 1.0 - sum * x2 / divisor;
  }
  sum = by_sine ? x * sum : sum;
  return negative ? -1.0 * sum : sum;
}

}  // namespace

void fill_normals(std::uint64_t key, std::uint64_t first_element, float deviation, float* values,
                  std::int64_t count);
void fill_normals(std::uint64_t key, std::uint64_t first_element, float deviation, float* values,
                  std::int64_t count) {
  Words element;
  for (int lane = 0; lane < lanes; ++lane) element[lane] = first_element + static_cast<std::uint64_t>(lane);
  for (std::int64_t i = 0; i < count; i += lanes) {
    const Uniforms uniforms = uniforms_of(element, key);
    const Reals normals = sqrt(-2.0 * log(uniforms.radius)) * cos_of_turns(uniforms.turns);
    const Values scaled = deviation * __builtin_convertvector(normals, Values);
    __builtin_memcpy(values + i, &scaled, sizeof(scaled));
    element += std::uint64_t{lanes};
  }
}

}  // namespace holdfast::core::HF_ISA
