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
constexpr std::int64_t update_chunk_blocks = 16;
constexpr std::int64_t update_prefetch_elements = 512;

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
template <typename Update>
void carry_digest(const Update& op, std::int64_t of_block, std::uint64_t read, std::uint64_t written,
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

// Moments of sixteen elements. A rule that keeps one has no v.
template <typename Update>
struct Moments16 {
  static constexpr bool has_v = Update::moment_count > 1;
  f32x16 m, v = zero();

  // Rounds them to what is kept; the first element has the number `element` in its block.
  HF_INLINE void round(RoundingKey key, std::int64_t element) {
    const Random16 random = random_bits(key, element);
    m = HF_PARTS(f32x16, rounded(m.part[p], random.part[p] & 0xffffU));
    if constexpr (has_v) v = HF_PARTS(f32x16, rounded(v.part[p], random.part[p] >> 16));
  }
  HF_INLINE void add_to(BlockDigest& digest, const DigestWeights& by, f32x16 w, auto lanes) const {
    digest.weight.add(by, keep(w, lanes, 0.0F));
    digest.moment1.add(by, keep(m, lanes, 0.0F));
    if constexpr (has_v) digest.moment2.add(by, keep(v, lanes, 0.0F));
  }
};

// Rule is what an update computes of a gradient: the direction that a weight goes against, and the moments for the next.
template <typename Update>
class Rule;

// The divisions by the corrections are products with their inverses: one division and one root an element are left.
template <>
class Rule<AdamW> {
 public:
  HF_INLINE explicit Rule(const AdamW& op)
      : beta1_(broadcast(op.beta1)),
        rest1_(broadcast(1.0F - op.beta1)),
        beta2_(broadcast(op.beta2)),
        rest2_(broadcast(1.0F - op.beta2)),
        inverse1_(broadcast(1.0F / op.correction1)),
        inverse2_(broadcast(1.0F / op.correction2)),
        epsilon_(broadcast(op.epsilon)) {}
  HF_INLINE f32x16 direction(f32x16 g, Moments16<AdamW>& moments) const {
    moments.m = fma(moments.m, beta1_, rest1_ * g);
    moments.v = fma(moments.v, beta2_, rest2_ * g * g);
    return (moments.m * inverse1_) / (sqrt(moments.v * inverse2_) + epsilon_);
  }

 private:
  f32x16 beta1_, rest1_, beta2_, rest2_, inverse1_, inverse2_, epsilon_;
};

template <>
class Rule<Lion> {
 public:
  HF_INLINE explicit Rule(const Lion& op)
      : beta1_(broadcast(op.beta1)),
        rest1_(broadcast(1.0F - op.beta1)),
        beta2_(broadcast(op.beta2)),
        rest2_(broadcast(1.0F - op.beta2)) {}
  HF_INLINE f32x16 direction(f32x16 g, Moments16<Lion>& moments) const {
    const f32x16 c = fma(moments.m, beta1_, rest1_ * g);
    moments.m = fma(moments.m, beta2_, rest2_ * g);
    return HF_PARTS(f32x16, sign(c.part[p]));
  }

 private:
  // Returns 1 or -1, or what is neither above nor below 0 as it is.
  HF_INLINE static NativeF32 sign(NativeF32 value) {
    const NativeF32 one = NativeF32{} + 1.0F;
    return value > NativeF32{} ? one : (value < NativeF32{} ? -one : value);
  }

  f32x16 beta1_, rest1_, beta2_, rest2_;
};

// AverageDigests are what a part of a block adds to its digest by the average of its weights, before an update and after.
struct AverageDigests {
  std::uint64_t read = 0, written = 0;
};

// Moves the average of the weights of elements [first, first + size), a block at most where there are digests, towards
// what the update has just written. The weights of a block are still in the nearest cache, so a pass of its own costs
// what the bytes of the average cost, and the update without one has not a register less.
template <bool with_digests, bool keeps, typename Update>
AverageDigests move_average(const Update& op, const OptimizerTensor& tensor, std::int64_t first,
                            std::int64_t size) {
  const float* const weight = tensor.weight + first;
  float* const ema = tensor.ema + first;
  float* const kept = keeps ? tensor.kept_ema + first : nullptr;
  const f32x16 rest = broadcast(op.ema_rest);
  ArrayDigest read, written;
  DigestWeights weights;
  for_lanes(
      size, [&](std::int64_t i, auto lanes) __attribute__((always_inline)) {
        prefetch(ema + i + update_prefetch_elements);
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

// Updates elements [first, first + size) of a tensor; `first` begins a block.
// put_copy(i, updated, lanes) writes the bf16 copy. `keeps`: the kept arrays are there, and may be streamed to.
template <bool with_digests, bool keeps, typename Moment, typename Update, typename PutCopy>
HF_INLINE void update_elements(const Update& op, const OptimizerTensor& tensor, std::int64_t first,
                               std::int64_t size, const PutCopy& put_copy) {
  constexpr bool rounds = sizeof(Moment) == sizeof(BFloat16), has_v = Moments16<Update>::has_v;
  float* weight = tensor.weight + first;
  Moment* moment1 = static_cast<Moment*>(tensor.moment1) + first;
  Moment* moment2 = has_v ? static_cast<Moment*>(tensor.moment2) + first : nullptr;
  const float* gradient = tensor.gradient + first;
  float* const kept_weight = keeps ? tensor.kept_weight + first : nullptr;
  Moment* const kept_moment1 = keeps ? static_cast<Moment*>(tensor.kept_moment1) + first : nullptr;
  Moment* const kept_moment2 = keeps && has_v ? static_cast<Moment*>(tensor.kept_moment2) + first : nullptr;
  const Rule<Update> rule(op);
  const f32x16 decay = broadcast(tensor.weight_decay);
  const f32x16 minus_rate = broadcast(-op.learning_rate), scale = broadcast(op.gradient_scale);
  BlockDigest read, written;
  ArrayDigest of_gradient;
  DigestWeights weights;
  RoundingKey key;  // of the block
  // `element`: the number of element i in its block, where that counts.
  const auto update_lanes = [&](std::int64_t i, std::int64_t element, auto lanes)
      __attribute__((always_inline)) {
    prefetch(gradient + i + update_prefetch_elements);
    prefetch(moment1 + i + update_prefetch_elements);
    if constexpr (has_v) prefetch(moment2 + i + update_prefetch_elements);
    prefetch(weight + i + update_prefetch_elements);
    const f32x16 sum = load(gradient + i, lanes);
    const f32x16 g = sum * scale;
    const f32x16 w = load(weight + i, lanes);
    Moments16<Update> moments{.m = load(moment1 + i, lanes)};
    if constexpr (has_v) moments.v = load(moment2 + i, lanes);
    if constexpr (with_digests) moments.add_to(read, weights, w, AllLanes{});
    const f32x16 direction = rule.direction(g, moments);
    const f32x16 updated = fma(minus_rate, fma(decay, w, direction), w);
    if constexpr (rounds) moments.round(key, element);
    store_kept(moment1 + i, moments.m, lanes);
    if constexpr (has_v) store_kept(moment2 + i, moments.v, lanes);
    store(weight + i, updated, lanes);
    put_copy(first + i, updated, lanes);
    if constexpr (keeps) {
      stream(kept_weight + i, updated, lanes);
      stream_kept(kept_moment1 + i, moments.m, lanes);
      if constexpr (has_v) stream_kept(kept_moment2 + i, moments.v, lanes);
    }
    if constexpr (with_digests) {
      moments.add_to(written, weights, updated, lanes);
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
template <bool with_digests, bool keeps, typename Moment, typename Update>
void update_with_copy(const Update& op, const OptimizerTensor& tensor, std::int64_t first,
                      std::int64_t size) {
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
template <bool with_digests, typename Moment, typename Update>
void update(const Update& op, const OptimizerTensor& tensor, std::int64_t first, std::int64_t size) {
  auto* const moment1 = static_cast<Moment*>(tensor.kept_moment1);
  auto* const moment2 = static_cast<Moment*>(tensor.kept_moment2);
  const auto is_streamed_to = [first](auto* to) { return to != nullptr && stream_aligned(to + first); };
  const bool streams = op.keeps_state && is_streamed_to(tensor.kept_weight) && is_streamed_to(moment1) &&
                       (!Moments16<Update>::has_v || is_streamed_to(moment2)) &&
                       (tensor.ema == nullptr || is_streamed_to(tensor.kept_ema));
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
  if constexpr (Moments16<Update>::has_v) copy(moment2, tensor.moment2);
  if (tensor.ema != nullptr) copy(tensor.kept_ema, tensor.ema);
}

// Returns the digest of `size` elements of a tensor from the first of a block on.
template <int moment_count, typename Moment>
std::uint64_t digest_of(const OptimizerTensor& tensor, std::int64_t first, std::int64_t size) {
  const float* const weight = tensor.weight + first;
  const auto* const moment1 = moment_count > 0 ? static_cast<const Moment*>(tensor.moment1) + first : nullptr;
  const auto* const moment2 = moment_count > 1 ? static_cast<const Moment*>(tensor.moment2) + first : nullptr;
  BlockDigest digest;
  DigestWeights weights;
  for_lanes(
      size, [&](std::int64_t i, auto lanes) __attribute__((always_inline)) {
        prefetch(weight + i + update_prefetch_elements);
        digest.weight.add(weights, load(weight + i, lanes));
        if constexpr (moment_count > 0) {
          prefetch(moment1 + i + update_prefetch_elements);
          digest.moment1.add(weights, load(moment1 + i, lanes));
        }
        if constexpr (moment_count > 1) {
          prefetch(moment2 + i + update_prefetch_elements);
          digest.moment2.add(weights, load(moment2 + i, lanes));
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
    std::uint64_t digest = tensor.moment2 != nullptr   ? digest_of<2, Moment>(tensor, begin, count)
                           : tensor.moment1 != nullptr ? digest_of<1, Moment>(tensor, begin, count)
                                                       : digest_of<0, Moment>(tensor, begin, count);
    if (tensor.ema != nullptr) digest += digest_of_average(tensor, begin, count);
    if (!op.checks_digests) {
      op.block_digests[of_block] = digest;
    } else if (op.block_digests[of_block] != digest) {
      note_damage(*op.damage, of_block);
    }
  }
}

template <typename Update>
void run_update(const Context& context, const Update& op) {
  if (op.damage != nullptr) *op.damage = StateDamage{};
  if (op.gradient_damage != nullptr) *op.gradient_damage = StateDamage{};
  for_chunks(context, op.block_count, update_chunk_blocks, [&](std::int64_t begin, std::int64_t blocks) {
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

}  // namespace

void run_adamw(const Context& context, const void* arguments) {
  run_update(context, *static_cast<const AdamW*>(arguments));
}

void run_lion(const Context& context, const void* arguments) {
  run_update(context, *static_cast<const Lion*>(arguments));
}

void run_optimizer_digest(const Context& context, const void* arguments) {
  const OptimizerDigest& op = *static_cast<const OptimizerDigest*>(arguments);
  if (op.damage != nullptr) *op.damage = StateDamage{};
  for_chunks(context, op.block_count, update_chunk_blocks, [&](std::int64_t begin, std::int64_t blocks) {
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
