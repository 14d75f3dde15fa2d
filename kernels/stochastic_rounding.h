// Stochastic rounding of fp32 to bf16: up or down with the chances that make the mean of what comes out the value that
// went in. A running mean that moves by less than half a unit of bf16 a step would stay where it is if it were rounded
// to nearest; so it moves as far on average.
//
// The random bits of an element are a function of a key, the number of its block and its number in that block, and
// there is no state of a generator: every device, instruction set, number of threads and layout rounds alike. The key
// of a block is an output of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), the bits are those of a 32-bit
// hash of three rounds of multiply and shift (Wellons 2018, "triple32"), which takes half of the key on its way, because
// blocks whose first halves are near each other would else share words.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define HF_ROUNDING __host__ __device__ inline
#else  // files of kernels/cpu/ops leave no code of it in a program
#define HF_ROUNDING [[gnu::always_inline]] inline
#endif

namespace holdfast::kernels {

struct RoundingKey {
  std::uint32_t first = 0, second = 0;
};

// Returns the key of a block. `key`: of all blocks that are rounded together, 64 mixed bits.
HF_ROUNDING RoundingKey rounding_key_of_block(std::uint64_t key, std::uint64_t block) {
  std::uint64_t x = key + block * 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  x = x ^ (x >> 31);
  return {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(x >> 32)};
}

// Returns 32 random bits of an element of a block: enough for two numbers. `Word` is std::uint32_t or a vector of them.
template <typename Word>
HF_ROUNDING Word rounding_bits(RoundingKey key, Word element) {
  Word x = element + key.first;
  x = (x ^ (x >> 17)) * 0xed5ad4bbU;
  x = x ^ (x >> 11) ^ key.second;
  x = x * 0xac4c1b51U;
  x = (x ^ (x >> 15)) * 0x31848babU;
  return x ^ (x >> 14);
}

// Returns the bits of a fp32 number rounded to bf16, as fp32 bits whose lower half is zero. `random`: below 2^16. The
// magnitude is rounded, so both signs are treated alike; zero and infinity stay, and a NaN becomes the one that
// to_bfloat16() makes of it. Above the largest bf16 a number may become infinite, as to nearest.
template <typename Word, typename Mask>
HF_ROUNDING Word rounded_with(Word bits, Word random, Mask is_nan) {
  const Word quiet = bits | 0x00400000U, moved = bits + random;
  return (is_nan ? quiet : moved) & 0xffff0000U;
}
HF_ROUNDING std::uint32_t rounded_with(std::uint32_t bits, std::uint32_t random) {
  return rounded_with(bits, random, (bits & 0x7fffffffU) > 0x7f800000U);
}

}  // namespace holdfast::kernels
