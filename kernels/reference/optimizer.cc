#include "kernels/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/stochastic_rounding.h"
#include "runtime/core/shard_spec.h"

namespace holdfast::kernels {

namespace {

constexpr std::int64_t block = static_cast<std::int64_t>(block_elements);

// Moments in memory, of either type, which are read and written as fp32.
class Moments {
 public:
  Moments(const void* values, DType dtype) : values_(values), dtype_(dtype) {}
  float operator[](std::int64_t i) const {
    return dtype_ == DType::bf16 ? to_float(static_cast<const BFloat16*>(values_)[i])
                                 : static_cast<const float*>(values_)[i];
  }

 private:
  const void* values_;
  DType dtype_;
};

// Writes an averaged moment; a bf16 one is rounded by `random`, 16 bits.
void keep(void* moments, DType dtype, std::int64_t i, float value, std::uint32_t random) {
  if (dtype == DType::bf16) {
    const std::uint32_t bits = rounded_with(std::bit_cast<std::uint32_t>(value), random);
    static_cast<BFloat16*>(moments)[i] = BFloat16{static_cast<std::uint16_t>(bits >> 16)};
  } else {
    static_cast<float*>(moments)[i] = value;
  }
}

void keep_state(const OptimizerTensor& tensor, DType moments) {
  const auto elements = static_cast<std::size_t>(tensor.count);
  const auto copy = [](void* to, const void* from, std::size_t bytes) {
    if (to != nullptr) std::memcpy(to, from, bytes);
  };
  copy(tensor.kept_weight, tensor.weight, elements * sizeof(float));
  copy(tensor.kept_moment1, tensor.moment1, elements * bytes_of(moments));
  if (tensor.moment2 != nullptr) copy(tensor.kept_moment2, tensor.moment2, elements * bytes_of(moments));
  if (tensor.ema != nullptr) copy(tensor.kept_ema, tensor.ema, elements * sizeof(float));
}

// Returns the direction that a weight goes against, and moves its moments.
double direction_of(const AdamW& op, double g, double& m, double& v) {
  const double beta1 = static_cast<double>(op.beta1), beta2 = static_cast<double>(op.beta2);
  m = beta1 * m + (1.0 - beta1) * g;
  v = beta2 * v + (1.0 - beta2) * g * g;
  const double root = std::sqrt(v / static_cast<double>(op.correction2));
  return m / static_cast<double>(op.correction1) / (root + static_cast<double>(op.epsilon));
}

// The sign is that of the fp32 number that the contract names: in double it could be the other one.
double direction_of(const Lion& op, double g, double& m, double& /*v*/) {
  const float c = std::fma(static_cast<float>(m), op.beta1, (1.0F - op.beta1) * static_cast<float>(g));
  const double beta2 = static_cast<double>(op.beta2);
  m = beta2 * m + (1.0 - beta2) * g;
  return static_cast<double>(c > 0.0F ? 1.0F : (c < 0.0F ? -1.0F : c));
}

template <typename Update>
void update(const Update& op, const OptimizerTensor& tensor) {
  constexpr bool has_v = Update::moment_count > 1;
  const Moments moment1(tensor.moment1, op.moments), moment2(tensor.moment2, op.moments);
  for (std::int64_t i = 0; i < tensor.count; ++i) {
    const double g = static_cast<double>(tensor.gradient[i]) * static_cast<double>(op.gradient_scale);
    double m = static_cast<double>(moment1[i]), v = has_v ? static_cast<double>(moment2[i]) : 0.0;
    const double direction = direction_of(op, g, m, v);
    const double w = static_cast<double>(tensor.weight[i]);
    const double decayed = static_cast<double>(tensor.weight_decay) * w + direction;
    const RoundingKey key =
        rounding_key_of_block(op.rounding_key, tensor.rounding_block + static_cast<std::uint64_t>(i / block));
    const std::uint32_t random = rounding_bits(key, static_cast<std::uint32_t>(i % block));
    keep(tensor.moment1, op.moments, i, static_cast<float>(m), random & 0xffffU);
    if (has_v) keep(tensor.moment2, op.moments, i, static_cast<float>(v), random >> 16);
    tensor.weight[i] = static_cast<float>(w - static_cast<double>(op.learning_rate) * decayed);
    if (tensor.copy != nullptr) tensor.copy[i] = to_bfloat16(tensor.weight[i]);
    if (tensor.ema == nullptr) continue;
    const double average = static_cast<double>(tensor.ema[i]);
    tensor.ema[i] = static_cast<float>(average + static_cast<double>(op.ema_rest) *
                                                     (static_cast<double>(tensor.weight[i]) - average));
  }
  if (op.keeps_state) keep_state(tensor, op.moments);
}

// Returns the digest of the memory of a tensor's block, which is counted over all tensors of the table.
std::uint64_t digest_of(const OptimizerTensor& tensor, DType moments, std::int64_t index) {
  const std::int64_t first = (index - tensor.first_block) * block;
  const auto from_first = [&](const void* values) -> const void* {
    return values == nullptr
               ? nullptr
               : static_cast<const std::byte*>(values) + static_cast<std::size_t>(first) * bytes_of(moments);
  };
  return state_digest(tensor.weight + first, from_first(tensor.moment1), from_first(tensor.moment2),
                      std::min(block, tensor.count - first), moments,
                      tensor.ema == nullptr ? nullptr : tensor.ema + first);
}

std::uint64_t digest_of_gradient(const OptimizerTensor& tensor, std::int64_t index) {
  const std::int64_t first = (index - tensor.first_block) * block;
  return state_digest(tensor.gradient + first, nullptr, nullptr, std::min(block, tensor.count - first));
}

std::int64_t end_block(const OptimizerTensor& tensor) {
  return tensor.first_block + (tensor.count + block - 1) / block;
}

void compare(StateDamage& damage, std::uint64_t kept, std::uint64_t read, std::int64_t index) {
  if (kept == read) return;
  ++damage.block_count;
  damage.first_block = std::min(damage.first_block, static_cast<std::uint64_t>(index));
}

template <typename Update>
void update_table(const Update& op) {
  StateDamage damage, gradient_damage;
  for (std::int64_t t = 0; t < op.tensor_count; ++t) {
    const OptimizerTensor& tensor = op.tensors[t];
    const std::int64_t end = op.block_digests != nullptr ? end_block(tensor) : tensor.first_block;
    for (std::int64_t b = tensor.first_block; op.checks_digests && b < end; ++b)
      compare(damage, op.block_digests[b], digest_of(tensor, op.moments, b), b);
    for (std::int64_t b = tensor.first_block; op.gradient_digests != nullptr && b < end; ++b)
      compare(gradient_damage, op.gradient_digests[b], digest_of_gradient(tensor, b), b);
    update(op, tensor);
    for (std::int64_t b = tensor.first_block; b < end; ++b)
      op.block_digests[b] = digest_of(tensor, op.moments, b);
  }
  if (op.damage != nullptr) *op.damage = damage;
  if (op.gradient_damage != nullptr) *op.gradient_damage = gradient_damage;
}

}  // namespace

void reference(const AdamW& op) {
  update_table(op);
}

void reference(const Lion& op) {
  update_table(op);
}

void reference(const OptimizerDigest& op) {
  StateDamage damage;
  for (std::int64_t t = 0; t < op.tensor_count; ++t) {
    const OptimizerTensor& tensor = op.tensors[t];
    const std::int64_t end = std::min(end_block(tensor), op.first_block + op.block_count);
    for (std::int64_t b = std::max(tensor.first_block, op.first_block); b < end; ++b) {
      const std::uint64_t digest = digest_of(tensor, op.moments, b);
      if (op.checks_digests) {
        compare(damage, op.block_digests[b], digest, b);
      } else {
        op.block_digests[b] = digest;
      }
    }
  }
  if (op.damage != nullptr) *op.damage = damage;
}

void reference(const SquareSum& op) {
  for (std::int64_t s = 0; s < op.segment_count; ++s) {
    const BlockSegment& segment = op.segments[s];
    reference(SquareSum{.values = op.values + segment.first,
                        .count = segment.count,
                        .sums = op.sums + segment.first_block,
                        .digests = op.digests != nullptr ? op.digests + segment.first_block : nullptr});
  }
  if (op.segment_count > 0) return;
  for (std::int64_t first = 0; first < op.count; first += block) {
    double sum = 0;
    const std::int64_t size = std::min(block, op.count - first);
    for (std::int64_t i = first; i < first + size; ++i) {
      sum += static_cast<double>(op.values[i]) * static_cast<double>(op.values[i]);
    }
    op.sums[first / block] = sum;
    if (op.digests != nullptr)
      op.digests[first / block] = state_digest(op.values + first, nullptr, nullptr, size);
  }
}

}  // namespace holdfast::kernels
