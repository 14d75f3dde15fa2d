#include "kernels/optimizer.h"

#include "kernels/cpu/ops/block_digest.h"
#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/ops/prefetch_group.h"
#include "kernels/cpu/ops/square_sum.h"
#include "kernels/cpu/simd.h"
#include "kernels/stochastic_rounding.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

constexpr std::int64_t block = static_cast<std::int64_t>(block_elements);
constexpr std::int64_t adamw_chunk_blocks = 16;
constexpr std::int64_t adamw_prefetch_elements = 512;

// Adds a block to the damage. Blocks are read by several threads.
void note_damage(StateDamage& damage, std::int64_t of_block) {
  const auto damaged = static_cast<std::uint64_t>(of_block);
  __atomic_fetch_add(&damage.block_count, 1, __ATOMIC_RELAXED);
  std::uint64_t lowest = __atomic_load_n(&damage.first_block, __ATOMIC_RELAXED);
  while (damaged < lowest && !__atomic_compare_exchange_n(&damage.first_block, &lowest, damaged, true,
                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// Compares the digests of what was read from a block, and leaves that of what was written.
void carry_digest(const AdamW& op, std::int64_t of_block, std::uint64_t read, std::uint64_t written,
                  std::uint64_t gradient) {
  std::uint64_t& digest = op.block_digests[of_block];
  if (op.checks_digests && digest != read) note_damage(*op.damage, of_block);
  digest = written;
  if (op.gradient_digests != nullptr && op.gradient_digests[of_block] != gradient)
    note_damage(*op.gradient_damage, of_block);
}

constexpr std::uint32_t lane_numbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Random bits of sixteen elements of a block, for both moments.
struct Random16 {
  NativeU32 part[native_parts];
};
HF_INLINE Random16 random_bits(RoundingKey key, std::int64_t element) {
  const auto of_part = [&](int p) __attribute__((always_inline)) {
    NativeU32 lanes;
    __builtin_memcpy(&lanes, lane_numbers + p * native_lanes, sizeof(lanes));
    return rounding_bits(key, lanes + static_cast<std::uint32_t>(element));
  };
  return make<Random16>(of_part);
}
HF_INLINE NativeF32 rounded(NativeF32 value, NativeU32 random) {
  return __builtin_bit_cast(NativeF32,
                            rounded_with(__builtin_bit_cast(NativeU32, value), random, value != value));
}

constexpr bool is_whole(AllLanes) {
  return true;
}
constexpr bool is_whole(FirstLanes) {
  return false;
}

// Stores moments as they are kept: those of bf16 are rounded, so nothing is left to round.
template <typename Moment, typename Lanes>
HF_INLINE void store_kept(Moment* to, f32x16 value, Lanes lanes) {
  if constexpr (sizeof(Moment) == sizeof(BFloat16) && is_whole(Lanes{})) {
    for (int p = 0; p < native_parts; ++p) {
      const NativeU16 halves = high_halves(__builtin_bit_cast(NativeU32, value.part[p]));
      __builtin_memcpy(&to[p * native_lanes].bits, &halves, sizeof(halves));
    }
  } else {
    store(to, value, lanes);
  }
}

// Streams moments that are kept. `to` is stream_aligned().
template <typename Moment>
HF_INLINE void stream_kept(Moment* to, f32x16 value, AllLanes lanes) {
  if constexpr (sizeof(Moment) == sizeof(BFloat16)) {
    for (int p = 0; p < native_parts; ++p)
      native_stream(to + p * native_lanes, high_halves(__builtin_bit_cast(NativeU32, value.part[p])));
  } else {
    stream(to, value, lanes);
  }
}
template <typename Moment>
HF_INLINE void stream_kept(Moment* to, f32x16 value, FirstLanes lanes) {
  store_kept(to, value, lanes);
}

// Averaged moments as they are kept.
struct KeptMoments {
  f32x16 m, v;
};

// Rounds the moments of sixteen elements, the first of which has the number `element` in its block.
HF_INLINE KeptMoments round_moments(RoundingKey key, std::int64_t element, f32x16 m, f32x16 v) {
  const Random16 random = random_bits(key, element);
  return {HF_PARTS(f32x16, rounded(m.part[p], random.part[p] & 0xffffU)),
          HF_PARTS(f32x16, rounded(v.part[p], random.part[p] >> 16))};
}

// AverageDigests are what a part of a block adds to its digest by the average of its weights, before an update and after.
struct AverageDigests {
  std::uint64_t read = 0, written = 0;
};

// Moves the average of the weights of elements [first, first + size), a block at most where there are digests, towards
// what the update has just written. The weights of a block are still in the nearest cache, so a pass of its own costs
// what the bytes of the average cost, and the update without one has not a register less.
template <bool with_digests, bool keeps>
AverageDigests move_average(const AdamW& op, const OptimizerTensor& tensor, std::int64_t first,
                            std::int64_t size) {
  const float* const weight = tensor.weight + first;
  float* const ema = tensor.ema + first;
  float* const kept = keeps ? tensor.kept_ema + first : nullptr;
  const f32x16 rest = broadcast(op.ema_rest);
  ArrayDigest read, written;
  DigestWeights weights;
  for_lanes(
      size, [&](std::int64_t i, auto lanes) __attribute__((always_inline)) {
        prefetch(ema + i + adamw_prefetch_elements);
        const f32x16 old = load(ema + i, lanes);
        const f32x16 average = fma(rest, load(weight + i, lanes) - old, old);
        store(ema + i, average, lanes);
        if constexpr (keeps) stream(kept + i, average, lanes);
        if constexpr (with_digests) {
          read.add(weights, old);
          written.add(weights, keep(average, lanes, 0.0F));
          weights.advance();
        }
      });
  if constexpr (!with_digests) return {};
  return {.read = digest_of_ema * read.value(), .written = digest_of_ema * written.value()};
}

// Updates elements [first, first + size) of a tensor; `first` begins a block. The divisions by the
// corrections are products with their inverses: one division and one root an element are left.
// put_copy(i, updated, lanes) writes the bf16 copy. `keeps`: the kept arrays are there, and may be streamed to.
template <bool with_digests, bool keeps, typename Moment, typename PutCopy>
HF_INLINE void update_elements(const AdamW& op, const OptimizerTensor& tensor, std::int64_t first,
                               std::int64_t size, const PutCopy& put_copy) {
  constexpr bool rounds = sizeof(Moment) == sizeof(BFloat16);
  float* weight = tensor.weight + first;
  Moment* moment1 = static_cast<Moment*>(tensor.moment1) + first;
  Moment* moment2 = static_cast<Moment*>(tensor.moment2) + first;
  const float* gradient = tensor.gradient + first;
  float* const kept_weight = keeps ? tensor.kept_weight + first : nullptr;
  Moment* const kept_moment1 = keeps ? static_cast<Moment*>(tensor.kept_moment1) + first : nullptr;
  Moment* const kept_moment2 = keeps ? static_cast<Moment*>(tensor.kept_moment2) + first : nullptr;
  const f32x16 beta1 = broadcast(op.beta1), rest1 = broadcast(1.0F - op.beta1);
  const f32x16 beta2 = broadcast(op.beta2), rest2 = broadcast(1.0F - op.beta2);
  const f32x16 inverse1 = broadcast(1.0F / op.correction1), inverse2 = broadcast(1.0F / op.correction2);
  const f32x16 epsilon = broadcast(op.epsilon), decay = broadcast(tensor.weight_decay);
  const f32x16 minus_rate = broadcast(-op.learning_rate), scale = broadcast(op.gradient_scale);
  BlockDigest read, written;
  ArrayDigest of_gradient;
  DigestWeights weights;
  RoundingKey key;  // of the block
  // `element`: the number of element i in its block, where that counts.
  const auto update_lanes = [&](std::int64_t i, std::int64_t element, auto lanes)
      __attribute__((always_inline)) {
    prefetch(gradient + i + adamw_prefetch_elements);
    prefetch(moment1 + i + adamw_prefetch_elements);
    prefetch(moment2 + i + adamw_prefetch_elements);
    prefetch(weight + i + adamw_prefetch_elements);
    const f32x16 sum = load(gradient + i, lanes);
    const f32x16 g = sum * scale;
    const f32x16 old_m = load(moment1 + i, lanes), old_v = load(moment2 + i, lanes);
    const f32x16 m = fma(old_m, beta1, rest1 * g);
    const f32x16 v = fma(old_v, beta2, rest2 * g * g);
    const f32x16 direction = (m * inverse1) / (sqrt(v * inverse2) + epsilon);
    const f32x16 w = load(weight + i, lanes);
    const f32x16 updated = fma(minus_rate, fma(decay, w, direction), w);
    KeptMoments kept{m, v};
    if constexpr (rounds) kept = round_moments(key, element, m, v);
    store_kept(moment1 + i, kept.m, lanes);
    store_kept(moment2 + i, kept.v, lanes);
    store(weight + i, updated, lanes);
    put_copy(first + i, updated, lanes);
    if constexpr (keeps) {
      stream(kept_weight + i, updated, lanes);
      stream_kept(kept_moment1 + i, kept.m, lanes);
      stream_kept(kept_moment2 + i, kept.v, lanes);
    }
    if constexpr (with_digests) {
      read.add(weights, w, old_m, old_v);
      written.add(weights, keep(updated, lanes, 0.0F), keep(kept.m, lanes, 0.0F), keep(kept.v, lanes, 0.0F));
      of_gradient.add(weights, sum);
      weights.advance();
    }
  };
  if constexpr (with_digests || rounds) {
    for (std::int64_t begin = 0; begin < size; begin += block) {
      const std::int64_t of_tensor = (first + begin) / block;
      read = written = BlockDigest{};
      of_gradient = ArrayDigest{};
      weights = DigestWeights{};
      if constexpr (rounds)
        key = rounding_key_of_block(op.rounding_key,
                                    tensor.rounding_block + static_cast<std::uint64_t>(of_tensor));
      for_lanes(
          smaller(block, size - begin), [&](std::int64_t i, auto lanes) __attribute__((always_inline)) {
            update_lanes(begin + i, i, lanes);
          });
      AverageDigests average;
      if (tensor.ema != nullptr)
        average = move_average<with_digests, keeps>(op, tensor, first + begin, smaller(block, size - begin));
      if constexpr (with_digests)
        carry_digest(op, tensor.first_block + of_tensor, read.value() + average.read,
                     written.value() + average.written, of_gradient.value());
    }
  } else {
    for_lanes(
        size, [&](std::int64_t i, auto lanes) __attribute__((always_inline)) { update_lanes(i, i, lanes); });
    if (tensor.ema != nullptr) move_average<false, keeps>(op, tensor, first, size);
  }
}

// The copy is not read before the next step's forward: it is streamed where its alignment allows.
template <bool with_digests, bool keeps, typename Moment>
void update_with_copy(const AdamW& op, const OptimizerTensor& tensor, std::int64_t first, std::int64_t size) {
  BFloat16* const copy = tensor.copy;
  if (copy == nullptr) {
    update_elements<with_digests, keeps, Moment>(op, tensor, first, size, [](std::int64_t, f32x16, auto) {});
  } else if (stream_aligned(copy + first)) {
    update_elements<with_digests, keeps, Moment>(
        op, tensor, first,
        size, [copy](std::int64_t i, f32x16 updated, auto lanes) __attribute__((always_inline)) {
          stream(copy + i, updated, lanes);
        });
    stream_fence();
  } else {
    update_elements<with_digests, keeps, Moment>(
        op, tensor, first,
        size, [copy](std::int64_t i, f32x16 updated, auto lanes) __attribute__((always_inline)) {
          store(copy + i, updated, lanes);
        });
  }
}

// Updates elements, and keeps what it leaves of them where that is wanted. Arrays that cannot be streamed to, which no
// snapshot has, are copied block by block.
template <bool with_digests, typename Moment>
void update(const AdamW& op, const OptimizerTensor& tensor, std::int64_t first, std::int64_t size) {
  auto* const moment1 = static_cast<Moment*>(tensor.kept_moment1);
  auto* const moment2 = static_cast<Moment*>(tensor.kept_moment2);
  const bool streams =
      op.keeps_state && tensor.kept_weight != nullptr && moment1 != nullptr && moment2 != nullptr &&
      stream_aligned(tensor.kept_weight + first) && stream_aligned(moment1 + first) &&
      stream_aligned(moment2 + first) &&
      (tensor.ema == nullptr || (tensor.kept_ema != nullptr && stream_aligned(tensor.kept_ema + first)));
  if (streams) {
    update_with_copy<with_digests, true, Moment>(op, tensor, first, size);
    stream_fence();
    return;
  }
  update_with_copy<with_digests, false, Moment>(op, tensor, first, size);
  if (!op.keeps_state) return;
  const auto copy = [&]<typename Element>(Element* to, const void* from) {
    if (to != nullptr)
      __builtin_memcpy(to + first, static_cast<const Element*>(from) + first,
                       static_cast<std::size_t>(size) * sizeof(Element));
  };
  copy(tensor.kept_weight, tensor.weight);
  copy(moment1, tensor.moment1);
  copy(moment2, tensor.moment2);
  if (tensor.ema != nullptr) copy(tensor.kept_ema, tensor.ema);
}

// Returns the digest of `size` elements of a tensor from the first of a block on.
template <bool with_moments, typename Moment>
std::uint64_t digest_of(const OptimizerTensor& tensor, std::int64_t first, std::int64_t size) {
  const float* const weight = tensor.weight + first;
  const auto* const moment1 = with_moments ? static_cast<const Moment*>(tensor.moment1) + first : nullptr;
  const auto* const moment2 = with_moments ? static_cast<const Moment*>(tensor.moment2) + first : nullptr;
  BlockDigest digest;
  DigestWeights weights;
  for_lanes(
      size, [&](std::int64_t i, auto lanes) __attribute__((always_inline)) {
        prefetch(weight + i + adamw_prefetch_elements);
        const f32x16 w = load(weight + i, lanes);
        if constexpr (with_moments) {
          prefetch(moment1 + i + adamw_prefetch_elements);
          prefetch(moment2 + i + adamw_prefetch_elements);
          digest.add(weights, w, load(moment1 + i, lanes), load(moment2 + i, lanes));
        } else {
          digest.weight.add(weights, w);
        }
        weights.advance();
      });
  return digest.value();
}

// Returns what the average of the weights adds to that.
std::uint64_t digest_of_average(const OptimizerTensor& tensor, std::int64_t first, std::int64_t size) {
  const float* const ema = tensor.ema + first;
  ArrayDigest digest;
  DigestWeights weights;
  for_lanes(
      size, [&](std::int64_t i, auto lanes) __attribute__((always_inline)) {
        digest.add(weights, load(ema + i, lanes));
        weights.advance();
      });
  return digest_of_ema * digest.value();
}

// Compares or leaves the digests of the blocks in `size` elements of a tensor from the first of a block on.
template <typename Moment>
void digest_blocks(const OptimizerDigest& op, const OptimizerTensor& tensor, std::int64_t first,
                   std::int64_t size) {
  for (std::int64_t begin = first; begin < first + size; begin += block) {
    const std::int64_t of_block = tensor.first_block + begin / block;
    const std::int64_t count = smaller(block, first + size - begin);
    std::uint64_t digest = tensor.moment1 != nullptr ? digest_of<true, Moment>(tensor, begin, count)
                                                     : digest_of<false, Moment>(tensor, begin, count);
    if (tensor.ema != nullptr) digest += digest_of_average(tensor, begin, count);
    if (!op.checks_digests) {
      op.block_digests[of_block] = digest;
    } else if (op.block_digests[of_block] != digest) {
      note_damage(*op.damage, of_block);
    }
  }
}

}  // namespace

void run_adamw(const Context& context, const void* arguments) {
  const AdamW& op = *static_cast<const AdamW*>(arguments);
  if (op.damage != nullptr) *op.damage = StateDamage{};
  if (op.gradient_damage != nullptr) *op.gradient_damage = StateDamage{};
  for_chunks(context, op.block_count, adamw_chunk_blocks, [&](std::int64_t begin, std::int64_t blocks) {
    for_parts(op.tensors, op.tensor_count, begin, begin + blocks,
              [&](const OptimizerTensor& tensor, std::int64_t first, std::int64_t size) {
                for_dtype(
                    op.moments, [&](auto moment) __attribute__((always_inline)) {
                      using Moment = decltype(moment);
                      if (op.block_digests != nullptr) {
                        update<true, Moment>(op, tensor, first, size);
                      } else {
                        update<false, Moment>(op, tensor, first, size);
                      }
                    });
              });
  });
}

void run_optimizer_digest(const Context& context, const void* arguments) {
  const OptimizerDigest& op = *static_cast<const OptimizerDigest*>(arguments);
  if (op.damage != nullptr) *op.damage = StateDamage{};
  for_chunks(context, op.block_count, adamw_chunk_blocks, [&](std::int64_t begin, std::int64_t blocks) {
    for_parts(op.tensors, op.tensor_count, op.first_block + begin, op.first_block + begin + blocks,
              [&](const OptimizerTensor& tensor, std::int64_t first, std::int64_t size) {
                for_dtype(
                    op.moments, [&](auto moment) __attribute__((always_inline)) {
                      digest_blocks<decltype(moment)>(op, tensor, first, size);
                    });
              });
  });
}

void run_square_sum(const Context& context, const void* arguments) {
  const SquareSum& op = *static_cast<const SquareSum*>(arguments);
  for_summed_pieces(context, op, {.squares = op.sums, .digests = op.digests},
                    [&](std::int64_t first, std::int64_t size, const BlockSums& sums) {
                      const float* values = op.values + first;
                      square_sums(
                          size, sums, [values](std::int64_t i, std::int64_t) __attribute__((always_inline)) {
                            prefetch_group(values, i);
                            return values + i;
                          });
                    });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
