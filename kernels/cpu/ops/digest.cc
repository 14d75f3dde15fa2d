// Words of 32 bits (or 16, widened) are taken in vectors whose lanes are 64 bits wide: the even words are
// their lower halves, the odd ones the upper. Threads add what their pieces give to the result in any order:
// the sums are of integers.
#include "kernels/digest.h"

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/ops/prefetch_group.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

constexpr std::int64_t digest_chunk_bytes = 1 << 18;

HF_INLINE NativeU32 load_words(const std::uint32_t* from) {
  NativeU32 words;
  __builtin_memcpy(&words, from, sizeof(words));
  return words;
}
HF_INLINE NativeU32 load_words(const std::uint16_t* from) {
  NativeU16 words;
  __builtin_memcpy(&words, from, sizeof(words));
  return widen(words);
}

// Digest of a piece, as in DigestWords. (A struct of this file: see ops.h.)
struct Piece {
  std::uint64_t sum = 0, weighted = 0, nonfinite = 0;
  std::uint32_t largest = 0;
};

HF_INLINE std::uint64_t sum_of(NativeU64 lanes) {
  std::uint64_t sum = 0;
  for (int i = 0; i < native_lanes / 2; ++i) sum += lanes[i];
  return sum;
}

// Counts what is not finite, and finds the largest of the rest. It is called only where there is some.
template <typename Bits>
void find_nonfinite(const Bits* values, std::int64_t count, Piece& piece) {
  constexpr std::uint32_t shift = sizeof(Bits) == 2 ? 16 : 0;
  piece.largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits;
    __builtin_memcpy(&bits, values + i, sizeof(bits));
    const std::uint32_t magnitude = (static_cast<std::uint32_t>(bits) << shift) & 0x7fffffffU;
    const bool finite = magnitude < 0x7f800000U;
    piece.nonfinite += finite ? 0 : 1;
    if (finite && magnitude > piece.largest) piece.largest = magnitude;
  }
}

// Returns the digest of fp32, bf16, or (not is_float) int32.
template <bool is_float, typename Bits>
Piece piece_of(const Bits* values, std::int64_t count, std::uint64_t first_index) {
  constexpr std::int64_t step = prefetch_step_bytes / static_cast<std::int64_t>(sizeof(Bits));
  constexpr std::uint32_t magnitude_mask = sizeof(Bits) == 2 ? 0x7fffU : 0x7fffffffU;
  NativeU32 multipliers;
  for (int i = 0; i < native_lanes; ++i)
    multipliers[i] = digest_multiplier(first_index + static_cast<std::uint64_t>(i));
  constexpr std::uint32_t stride = digest_multiplier(native_lanes) - digest_multiplier(0);
  // `pairs` adds even words and 2^32 times the odd ones: both sums are found from it and from `odd`.
  NativeU64 pairs{}, odd{}, weighted_even{}, weighted_odd{};
  NativeI32 largest{};
  const auto take = [&](NativeU32 words) __attribute__((always_inline)) {
    const NativeU64 both = __builtin_bit_cast(NativeU64, words);
    const NativeU64 factors = __builtin_bit_cast(NativeU64, multipliers);
    pairs += both;
    odd += both >> 32;
    weighted_even += native_low_product(both, factors);
    weighted_odd += native_low_product(both >> 32, factors >> 32);
    if constexpr (is_float) {
      const NativeI32 magnitude = __builtin_bit_cast(NativeI32, words & magnitude_mask);
      largest = magnitude > largest ? magnitude : largest;
    }
    multipliers += stride;
  };
  std::int64_t i = 0;
  for (; i + step <= count; i += step) {
    prefetch_group(values, i * static_cast<std::int64_t>(sizeof(Bits)));
    for (std::int64_t j = i; j < i + step; j += native_lanes) take(load_words(values + j));
  }
  for (; i + native_lanes <= count; i += native_lanes) take(load_words(values + i));
  if (i < count) {
    Bits rest[native_lanes] = {};  // zeros add nothing
    __builtin_memcpy(rest, values + i, static_cast<std::size_t>(count - i) * sizeof(Bits));
    take(load_words(rest));
  }
  Piece piece;
  piece.sum = sum_of(pairs) - (sum_of(odd) << 32) + sum_of(odd);
  piece.weighted = sum_of(weighted_even) + sum_of(weighted_odd);
  if constexpr (is_float) {
    for (int lane = 0; lane < native_lanes; ++lane) {
      const auto magnitude = static_cast<std::uint32_t>(largest[lane]) << (sizeof(Bits) == 2 ? 16 : 0);
      if (magnitude > piece.largest) piece.largest = magnitude;
    }
    if (piece.largest >= 0x7f800000U) find_nonfinite(values, count, piece);
  }
  return piece;
}

// Returns the digest of fp64, element by element: such tensors are small.
Piece piece_of_doubles(const double* values, std::int64_t count, std::uint64_t first_index) {
  constexpr float most = 3.40282346638528859812e+38F;  // the largest finite one
  Piece piece;
  float largest = 0.0F;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = __builtin_bit_cast(std::uint64_t, values[i]);
    piece.sum += bits;
    piece.weighted += bits * digest_multiplier(first_index + static_cast<std::uint64_t>(i));
    const std::uint64_t magnitude_bits = bits & 0x7fffffffffffffffU;
    if (magnitude_bits >= 0x7ff0000000000000U) {
      ++piece.nonfinite;
      continue;
    }
    const double magnitude = __builtin_bit_cast(double, magnitude_bits);
    const float rounded = magnitude < static_cast<double>(most) ? static_cast<float>(magnitude) : most;
    if (rounded > largest) largest = rounded;
  }
  piece.largest = __builtin_bit_cast(std::uint32_t, largest);
  return piece;
}

HF_INLINE void clear(DigestWords& words) {
  words.sum = words.weighted = words.nonfinite = 0;
  words.largest = words.reserved = 0;
}

HF_INLINE void add_atomically(DigestWords& into, const Piece& piece) {
  __atomic_fetch_add(&into.sum, piece.sum, __ATOMIC_RELAXED);
  __atomic_fetch_add(&into.weighted, piece.weighted, __ATOMIC_RELAXED);
  __atomic_fetch_add(&into.nonfinite, piece.nonfinite, __ATOMIC_RELAXED);
  std::uint32_t seen = __atomic_load_n(&into.largest, __ATOMIC_RELAXED);
  while (seen < piece.largest && !__atomic_compare_exchange_n(&into.largest, &seen, piece.largest, true,
                                                              __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

template <typename T, typename Digest>
HF_INLINE void digest_chunks(const Context& context, const TensorDigest& op, const Digest& digest) {
  constexpr std::int64_t chunk = digest_chunk_bytes / static_cast<std::int64_t>(sizeof(T));
  for_chunks(context, op.count, chunk, [&](std::int64_t first, std::int64_t size) {
    const T* const values = static_cast<const T*>(op.values) + first;
    add_atomically(*op.result, digest(values, size, static_cast<std::uint64_t>(op.first_index + first)));
  });
}

}  // namespace

void run_digest(const Context& context, const void* arguments) {
  const TensorDigest& op = *static_cast<const TensorDigest*>(arguments);
  if (!op.accumulate) clear(*op.result);
  switch (op.dtype) {
    case DType::fp32:
      return digest_chunks<std::uint32_t>(context, op, piece_of<true, std::uint32_t>);
    case DType::bf16:
      return digest_chunks<std::uint16_t>(context, op, piece_of<true, std::uint16_t>);
    case DType::int32:
      return digest_chunks<std::uint32_t>(context, op, piece_of<false, std::uint32_t>);
    case DType::fp64:
      return digest_chunks<double>(context, op, piece_of_doubles);
  }
}

}  // namespace holdfast::kernels::cpu::HF_ISA
