#include "runtime/core/random.h"

#include <bit>
#include <cmath>

#include "runtime/core/normal_lanes.h"

namespace holdfast::core {
namespace {

// The third counter word keeps the words of normal() apart from those of bits().
constexpr std::uint32_t bits_domain = 0;
constexpr std::uint32_t normal_domain = 1;

Philox4 arguments_of(std::uint64_t key, std::uint64_t element, std::uint32_t domain) {
  return philox4x32(
      {static_cast<std::uint32_t>(element), static_cast<std::uint32_t>(element >> 32), domain, 0u}, key);
}

std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

// The finaliser of SplitMix64: a bijection in which every input bit reaches every output bit.
std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// log and cos of the C library differ in the last bit between systems. These use only +, -, *, / and sqrt,
// which IEEE 754 fixes to the bit; their error is a few units in the last place.

// Natural logarithm of a normal, positive x: x = 2^e m with m in [sqrt(1/2), sqrt(2)), log m = 2
// atanh((m-1)/(m+1)).
double portable_log(double x) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  std::int64_t exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m >= 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);  // |s| < 0.172, so s^23 / 23 is below half a unit in the last place
  const double s2 = s * s;
  double series = 0.0;
  for (int n = 21; n >= 3; n -= 2) series = (series + 1.0 / n) * s2;
  return static_cast<double>(exponent) * 0.6931471805599453 + 2.0 * (s + s * series);
}

// Taylor series of cos and sin on [0, pi/4].
double cos_series(double x) {
  const double x2 = x * x;
  double sum = 1.0;
  for (int n = 18; n >= 2; n -= 2) sum = 1.0 - sum * x2 / (n * (n - 1));
  return sum;
}

double sin_series(double x) {
  const double x2 = x * x;
  double sum = 1.0;
  for (int n = 19; n >= 3; n -= 2) sum = 1.0 - sum * x2 / (n * (n - 1));
  return x * sum;
}

// Returns cos(2 pi turns) for turns in [0, 1); the folding is exact.
double portable_cos_of_turns(double turns) {
  constexpr double two_pi = 6.283185307179586;
  if (turns > 0.5) turns = 1.0 - turns;
  double sign = 1.0;
  if (turns > 0.25) {
    turns = 0.5 - turns;
    sign = -1.0;
  }
  return sign * (turns > 0.125 ? sin_series(two_pi * (0.25 - turns)) : cos_series(two_pi * turns));
}

}  // namespace

Philox4 philox4x32(const Philox4& counter, std::uint64_t key) {
  Philox4 c = counter;
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xd2511f53u} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xcd9e8d57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return c;
}

std::uint64_t mix64(std::uint64_t a, std::uint64_t b) {
  return scramble(std::rotl(scramble(a + 0x9e3779b97f4a7c15u), 23) ^ scramble(b + 0xd1b54a32d192ed03u));
}

std::uint64_t RandomStream::bits(std::uint64_t element) const {
  const Philox4 words = arguments_of(key_, element, bits_domain);
  return join(words[0], words[1]);
}

double RandomStream::uniform(std::uint64_t element) const {
  return static_cast<double>(bits(element) >> 11) * 0x1p-53;
}

float RandomStream::normal(std::uint64_t element) const {
  const Philox4 words = arguments_of(key_, element, normal_domain);
  const double radius_uniform =
      static_cast<double>((join(words[0], words[1]) >> 11) + 1) * 0x1p-53;             // (0, 1]
  const double turns = static_cast<double>(join(words[2], words[3]) >> 11) * 0x1p-53;  // [0, 1)
  return static_cast<float>(std::sqrt(-2.0 * portable_log(radius_uniform)) * portable_cos_of_turns(turns));
}

void RandomStream::fill_normals(std::uint64_t first_element, float deviation, std::span<float> values) const {
  const std::size_t in_lanes = values.size() - values.size() % static_cast<std::size_t>(normal_lanes);
  normal_fillers().back().fill(key_, first_element, deviation, values.data(),
                               static_cast<std::int64_t>(in_lanes));
  for (std::size_t i = in_lanes; i < values.size(); ++i) values[i] = deviation * normal(first_element + i);
}

}  // namespace holdfast::core
