#include "kernels/optimizer.h"

#include <type_traits>

#include "kernels/cuda/digest_weight.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/square_sum.h"
#include "kernels/cuda/vector.h"
#include "kernels/stochastic_rounding.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr std::int64_t block = static_cast<std::int64_t>(block_elements);
constexpr int update_threads = 256;
constexpr int packed = 4;  // elements that a thread takes at a time where the addresses allow it
constexpr std::uint32_t digest_step = digest_power(update_threads);
constexpr std::uint32_t digest_step_packed = digest_power(update_threads * packed);

// Rule is what an update computes of a gradient: the direction that a weight goes against, and the moments for the next.
// With the operations of the CPU in its order, both have the same bits.
template <typename Update>
struct Rule;

// The divisions by the corrections are products with their inverses.
template <>
struct Rule<AdamW> {
  static constexpr bool has_v = true;
  float beta1, rest1, beta2, rest2, inverse1, inverse2, epsilon;
  explicit Rule(const AdamW& op)
      : beta1(op.beta1),
        rest1(1.0F - op.beta1),
        beta2(op.beta2),
        rest2(1.0F - op.beta2),
        inverse1(1.0F / op.correction1),
        inverse2(1.0F / op.correction2),
        epsilon(op.epsilon) {}
  __device__ float direction(float g, float& m, float& v) const {
    m = fmaf(m, beta1, rest1 * g);
    v = fmaf(v, beta2, rest2 * g * g);
    return m * inverse1 / (sqrtf(v * inverse2) + epsilon);
  }
};

template <>
struct Rule<Lion> {
  static constexpr bool has_v = false;
  float beta1, rest1, beta2, rest2;
  explicit Rule(const Lion& op)
      : beta1(op.beta1), rest1(1.0F - op.beta1), beta2(op.beta2), rest2(1.0F - op.beta2) {}
  __device__ float direction(float g, float& m, float& /*v*/) const {
    const float c = fmaf(m, beta1, rest1 * g);
    m = fmaf(m, beta2, rest2 * g);
    return c > 0.0F ? 1.0F : (c < 0.0F ? -1.0F : c);
  }
};

// Coefficients that are the same for all elements and rules, and the rule.
template <typename Update>
struct Coefficients {
  float gradient_scale, minus_rate, ema_rest;
  std::uint64_t rounding_key;
  Rule<Update> rule;
};

// Digests of all blocks, as AdamW has them.
struct Digests {
  std::uint64_t* blocks;
  bool checks;
  StateDamage* damage;
  const std::uint64_t* gradients = nullptr;
  StateDamage* gradient_damage = nullptr;
};

// Sums that a thread has added to the digests of its block (runtime/core/block_digest.h).
struct BlockDigests {
  std::uint64_t read = 0, written = 0, gradient = 0;
};

// Part of the digest that neighbouring elements of one array make; `weight` is that of the first.
template <int size>
__device__ std::uint64_t digest_part(std::uint32_t weight, const float (&values)[size]) {
  std::uint64_t sum = 0;
#pragma unroll
  for (int i = 0; i < size; ++i) {
    sum += static_cast<std::uint64_t>(weight) * __float_as_uint(values[i]);
    weight *= digest_generator;
  }
  return sum;
}

// Part of the digest that neighbouring elements make; `weight` is that of the first.
template <int size>
__device__ std::uint64_t digest_part(std::uint32_t weight, const float (&w)[size], const float (&m)[size],
                                     const float (&v)[size]) {
  return digest_part<size>(weight, w) + digest_of_moment1 * digest_part<size>(weight, m) +
         digest_of_moment2 * digest_part<size>(weight, v);
}

// Rounds averaged moments to those that are kept. `element`: the number of the first one in its block.
template <int size, bool has_v>
__device__ void round_moments(RoundingKey key, std::uint32_t element, float (&m)[size], float (&v)[size]) {
#pragma unroll
  for (int i = 0; i < size; ++i) {
    const std::uint32_t random = rounding_bits(key, element + i);
    m[i] = __uint_as_float(rounded_with(__float_as_uint(m[i]), random & 0xffffU));
    if constexpr (has_v) v[i] = __uint_as_float(rounded_with(__float_as_uint(v[i]), random >> 16));
  }
}

template <int size>
__device__ void store_moments(float* target, const float (&values)[size]) {
  store<size>(target, values);
}
// Stores what round_moments() has made, bit by bit: a conversion would not preserve the bits of a NaN.
template <int size>
__device__ void store_moments(BFloat16* target, const float (&values)[size]) {
  Pack<BFloat16, size> pack;
#pragma unroll
  for (int i = 0; i < size; ++i) {
    const std::uint32_t bits = __float_as_uint(values[i]);
    if constexpr (size == 1) {
      pack.elements[i] = BFloat16{static_cast<std::uint16_t>(bits >> 16)};
    } else {
      pack.pairs[i / 2] = i % 2 == 0 ? bits >> 16 : pack.pairs[i / 2] | bits;
    }
  }
  *reinterpret_cast<Pack<BFloat16, size>*>(target) = pack;
}

// Moves the average of the weights of `size` elements from `first` on towards `w`, what the update has made of them.
template <int size, bool with_digests, bool keeps, typename Update>
__device__ void move_average(const Coefficients<Update>& by, const OptimizerTensor& tensor,
                             std::int64_t first, std::uint32_t first_weight, const float (&w)[size],
                             BlockDigests& digests) {
  float average[size];
  load<size>(tensor.ema + first, average);
  if constexpr (with_digests) digests.read += digest_of_ema * digest_part<size>(first_weight, average);
#pragma unroll
  for (int i = 0; i < size; ++i) average[i] = fmaf(by.ema_rest, w[i] - average[i], average[i]);
  if constexpr (with_digests) digests.written += digest_of_ema * digest_part<size>(first_weight, average);
  store<size>(tensor.ema + first, average);
  if constexpr (keeps) {
    if (tensor.kept_ema != nullptr) store<size>(tensor.kept_ema + first, average);
  }
}

// Updates `size` elements from `first` on. `element`: the number of the first one in its block, in whose digest it has
// the weight `first_weight`; `key` is that of the block.
template <int size, bool with_digests, bool keeps, typename Moment, typename Update>
__device__ void update(const Coefficients<Update>& by, const OptimizerTensor& tensor, std::int64_t first,
                       std::uint32_t element, std::uint32_t first_weight, RoundingKey key,
                       BlockDigests& digests) {
  constexpr bool has_v = Rule<Update>::has_v;
  Moment* const moment1 = static_cast<Moment*>(tensor.moment1) + first;
  Moment* const moment2 = has_v ? static_cast<Moment*>(tensor.moment2) + first : nullptr;
  float w[size], m[size], v[size] = {}, g[size];
  load<size>(tensor.gradient + first, g);
  load<size>(moment1, m);
  if constexpr (has_v) load<size>(moment2, v);
  load<size>(tensor.weight + first, w);
  if constexpr (with_digests) {
    digests.read += digest_part<size>(first_weight, w, m, v);
    digests.gradient += digest_part<size>(first_weight, g);
  }
#pragma unroll
  for (int i = 0; i < size; ++i) {
    g[i] *= by.gradient_scale;
    const float direction = by.rule.direction(g[i], m[i], v[i]);
    w[i] = fmaf(by.minus_rate, fmaf(tensor.weight_decay, w[i], direction), w[i]);
  }
  if constexpr (std::is_same_v<Moment, BFloat16>) round_moments<size, has_v>(key, element, m, v);
  if constexpr (with_digests) digests.written += digest_part<size>(first_weight, w, m, v);
  store_moments<size>(moment1, m);
  if constexpr (has_v) store_moments<size>(moment2, v);
  store<size>(tensor.weight + first, w);
  if (tensor.copy != nullptr) store<size>(tensor.copy + first, w);
  if constexpr (keeps) {
    if (tensor.kept_weight != nullptr) store<size>(tensor.kept_weight + first, w);
    if (tensor.kept_moment1 != nullptr)
      store_moments<size>(static_cast<Moment*>(tensor.kept_moment1) + first, m);
    if (has_v && tensor.kept_moment2 != nullptr)
      store_moments<size>(static_cast<Moment*>(tensor.kept_moment2) + first, v);
  }
  if (tensor.ema != nullptr)
    move_average<size, with_digests, keeps>(by, tensor, first, first_weight, w, digests);
}

// Updates the part of a block [begin, end) that this thread has, `size` neighbouring elements at a time.
template <int size, bool with_digests, bool keeps, typename Moment, typename Update>
__device__ void update_part(const Coefficients<Update>& by, const OptimizerTensor& tensor, std::int64_t begin,
                            std::int64_t end, std::uint32_t index, RoundingKey key, BlockDigests& digests) {
  std::uint32_t weight = 1, element = index + threadIdx.x * size;
  if constexpr (with_digests) weight = digest_weight<block_elements>(element);
  for (std::int64_t i = begin + threadIdx.x * size; i < end; i += update_threads * size) {
    update<size, with_digests, keeps, Moment>(by, tensor, i, element, weight, key, digests);
    weight *= size == 1 ? digest_step : digest_step_packed;
    element += update_threads * size;
  }
}

// The tensor that holds a block: the last one that starts at or before it.
__device__ OptimizerTensor tensor_of_block(const OptimizerTensor* tensors, std::int64_t count,
                                           std::int64_t wanted) {
  std::int64_t low = 0;
  for (std::int64_t high = count; high - low > 1;) {
    const std::int64_t middle = low + (high - low) / 2;
    (tensors[middle].first_block <= wanted ? low : high) = middle;
  }
  return tensors[low];
}

// Returns whether all arrays can be accessed in packs.
template <typename Moment>
__device__ bool aligned(const OptimizerTensor& tensor) {
  const auto of = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address); };
  return (of(tensor.weight) | of(tensor.gradient) | of(tensor.ema)) % 16 == 0 && of(tensor.copy) % 8 == 0 &&
         (of(tensor.moment1) | of(tensor.moment2)) % (packed * sizeof(Moment)) == 0 &&
         (of(tensor.kept_weight) | of(tensor.kept_ema)) % 16 == 0 &&
         (of(tensor.kept_moment1) | of(tensor.kept_moment2)) % (packed * sizeof(Moment)) == 0;
}

// Adds a block to the damage.
__device__ void note_damage(StateDamage* damage, std::int64_t of_block) {
  atomicAdd(reinterpret_cast<unsigned long long*>(&damage->block_count), 1ULL);
  atomicMin(reinterpret_cast<unsigned long long*>(&damage->first_block),
            static_cast<unsigned long long>(of_block));
}

// Compares the digests of what the thread block read, and leaves that of what it wrote. All threads call.
__device__ void carry_digest(const Digests& of, const BlockDigests& mine) {
  const std::uint64_t read = block_reduce(mine.read, Sum{}), written = block_reduce(mine.written, Sum{});
  const std::uint64_t gradient = block_reduce(mine.gradient, Sum{});
  if (threadIdx.x != 0) return;
  std::uint64_t& digest = of.blocks[blockIdx.x];
  if (of.checks && digest != read) note_damage(of.damage, blockIdx.x);
  digest = written;
  if (of.gradients != nullptr && of.gradients[blockIdx.x] != gradient)
    note_damage(of.gradient_damage, blockIdx.x);
}

// Returns what this thread adds to the digest of a part of a block [begin, end), of which it takes `size`
// neighbouring elements at a time.
template <int size, typename Moment>
__device__ std::uint64_t digest_of_part(const OptimizerTensor& tensor, std::int64_t begin, std::int64_t end,
                                        std::uint32_t index) {
  std::uint64_t digest = 0;
  std::uint32_t weight = digest_weight<block_elements>(index + threadIdx.x * size);
  for (std::int64_t i = begin + threadIdx.x * size; i < end; i += update_threads * size) {
    float w[size], m[size] = {}, v[size] = {};
    load<size>(tensor.weight + i, w);
    if (tensor.moment1 != nullptr) {
      load<size>(static_cast<const Moment*>(tensor.moment1) + i, m);
      if (tensor.moment2 != nullptr) load<size>(static_cast<const Moment*>(tensor.moment2) + i, v);
    }
    digest += digest_part<size>(weight, w, m, v);
    if (tensor.ema != nullptr) {
      load<size>(tensor.ema + i, w);
      digest += digest_of_ema * digest_part<size>(weight, w);
    }
    weight *= size == 1 ? digest_step : digest_step_packed;
  }
  return digest;
}

// A thread block updates a block of elements.
template <typename Update, bool with_digests, bool keeps, typename Moment>
__global__ void update_blocks(const OptimizerTensor* tensors, std::int64_t tensor_count,
                              Coefficients<Update> by, Digests digests) {
  const OptimizerTensor tensor = tensor_of_block(tensors, tensor_count, blockIdx.x);
  const std::int64_t begin = (blockIdx.x - tensor.first_block) * block;
  const std::int64_t end = min(begin + block, tensor.count);
  const std::int64_t packed_end = aligned<Moment>(tensor) ? begin + (end - begin) / packed * packed : begin;
  RoundingKey key;
  if constexpr (std::is_same_v<Moment, BFloat16>)
    key = rounding_key_of_block(by.rounding_key, tensor.rounding_block + (blockIdx.x - tensor.first_block));
  BlockDigests mine;
  update_part<packed, with_digests, keeps, Moment>(by, tensor, begin, packed_end, 0, key, mine);
  update_part<1, with_digests, keeps, Moment>(by, tensor, packed_end, end,
                                              static_cast<std::uint32_t>(packed_end - begin), key, mine);
  if constexpr (with_digests) carry_digest(digests, mine);
}

// A thread block computes the digest of a block of elements.
template <typename Moment>
__global__ void state_digests(const OptimizerTensor* tensors, std::int64_t tensor_count,
                              std::int64_t first_block, Digests digests) {
  const std::int64_t index = first_block + blockIdx.x;
  const OptimizerTensor tensor = tensor_of_block(tensors, tensor_count, index);
  const std::int64_t begin = (index - tensor.first_block) * block;
  const std::int64_t end = min(begin + block, tensor.count);
  const std::int64_t packed_end = aligned<Moment>(tensor) ? begin + (end - begin) / packed * packed : begin;
  const std::uint64_t digest = block_reduce(
      digest_of_part<packed, Moment>(tensor, begin, packed_end, 0) +
          digest_of_part<1, Moment>(tensor, packed_end, end, static_cast<std::uint32_t>(packed_end - begin)),
      Sum{});
  if (threadIdx.x != 0) return;
  if (!digests.checks) {
    digests.blocks[index] = digest;
  } else if (digests.blocks[index] != digest) {
    note_damage(digests.damage, index);
  }
}

__global__ void clear_damage(StateDamage* damage) {
  *damage = StateDamage{};
}

template <typename Update>
void run_update(Context& context, const Update& op) {
  const Coefficients<Update> by = {.gradient_scale = op.gradient_scale,
                                   .minus_rate = -op.learning_rate,
                                   .ema_rest = op.ema_rest,
                                   .rounding_key = op.rounding_key,
                                   .rule = Rule<Update>(op)};
  const Digests digests = {.blocks = op.block_digests,
                           .checks = op.checks_digests,
                           .damage = op.damage,
                           .gradients = op.gradient_digests,
                           .gradient_damage = op.gradient_damage};
  const Grid grid = {.blocks = blocks_for(op.block_count, 1), .threads = update_threads};
  if (op.damage != nullptr) launch(context, clear_damage, {.blocks = 1, .threads = 1}, op.damage);
  if (op.gradient_damage != nullptr)
    launch(context, clear_damage, {.blocks = 1, .threads = 1}, op.gradient_damage);
  for_dtype(op.moments, [&](auto moment) {
    using Moment = decltype(moment);
    const auto run = [&](auto* kernel) {
      launch(context, kernel, grid, op.tensors, op.tensor_count, by, digests);
    };
    const bool with_digests = op.block_digests != nullptr;
    if (op.keeps_state) {
      run(with_digests ? update_blocks<Update, true, true, Moment>
                       : update_blocks<Update, false, true, Moment>);
    } else {
      run(with_digests ? update_blocks<Update, true, false, Moment>
                       : update_blocks<Update, false, false, Moment>);
    }
  });
}

}  // namespace

void run_adamw(Context& context, const void* arguments) {
  run_update(context, *static_cast<const AdamW*>(arguments));
}

void run_lion(Context& context, const void* arguments) {
  run_update(context, *static_cast<const Lion*>(arguments));
}

void run_optimizer_digest(Context& context, const void* arguments) {
  const OptimizerDigest& op = *static_cast<const OptimizerDigest*>(arguments);
  const Digests digests = {.blocks = op.block_digests, .checks = op.checks_digests, .damage = op.damage};
  const Grid grid = {.blocks = blocks_for(op.block_count, 1), .threads = update_threads};
  if (op.damage != nullptr) launch(context, clear_damage, {.blocks = 1, .threads = 1}, op.damage);
  for_dtype(op.moments, [&](auto moment) {
    launch(context, state_digests<decltype(moment)>, grid, op.tensors, op.tensor_count, op.first_block,
           digests);
  });
}

void run_square_sum(Context& context, const void* arguments) {
  const SquareSum& op = *static_cast<const SquareSum*>(arguments);
  launch_square_sums<const float*>(context, op, op.values, nullptr, op.sums, op.digests);
}

}  // namespace holdfast::kernels::cuda
