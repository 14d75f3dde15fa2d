// Counter-based random numbers (Philox4x32-10, Salmon et al., SC'11): a value is a pure function of its key
// and counter, so there is no state to save and any rank can compute any element.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace holdfast::core {

using Philox4 = std::array<std::uint32_t, 4>;
Philox4 philox4x32(const Philox4& counter, std::uint64_t key);

// Mixes two words into 64 bits (not additive: mix64(seed, a) of neighbouring seeds share nothing).
std::uint64_t mix64(std::uint64_t a, std::uint64_t b);

// A named stream: key = mix64(seed, stream). Element i of the stream is independent of all others.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t stream) : key_(mix64(seed, stream)) {}
  std::uint64_t bits(std::uint64_t element) const;
  double uniform(std::uint64_t element) const;  // in [0, 1), 53 bits
  // Returns a normal number with mean 0 and deviation 1; Box-Muller in double, the same bits everywhere.
  float normal(std::uint64_t element) const;
  // Sets values[i] = deviation * normal(first_element + i), in a fraction of the time of single calls.
  void fill_normals(std::uint64_t first_element, float deviation, std::span<float> values) const;

 private:
  std::uint64_t key_;
};

}  // namespace holdfast::core
