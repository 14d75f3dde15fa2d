#include "runtime/optim/sharded_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/elementwise.h"
#include "kernels/state_digest.h"

namespace holdfast::inline optim {

ShardedOptimizer::ShardedOptimizer(const BucketPlan& buckets, int rank, DType dtype,
                                   const OptimizerConfig& config, MemoryPlan& plan, bool checks_state)
    : config_(config),
      dtype_(dtype),
      segments_(buckets.segments(rank)),
      frozen_(buckets.frozen_segments(rank)),
      specs_(buckets.shard_specs(rank, "weight")),
      checks_state_(checks_state) {
  const std::uint64_t shard_bytes = buckets.shard_elements(rank) * sizeof(float);
  if (dtype == DType::bf16) {
    master_slot_ = plan.reserve("optimizer.master", MemoryClass::optimizer,
                                buckets.master_elements(rank) * sizeof(float));
  }
  moment1_slot_ = plan.reserve("optimizer.moment1", MemoryClass::optimizer, shard_bytes);
  moment2_slot_ = plan.reserve("optimizer.moment2", MemoryClass::optimizer, shard_bytes);
  for (const Segment& segment : segments_) {
    const Bucket& bucket = buckets.buckets()[static_cast<std::size_t>(segment.bucket)];
    weight_decay_.push_back(bucket.tensors[static_cast<std::size_t>(segment.tensor)].weight_decay);
    first_blocks_.push_back(block_count_);
    block_count_ += segment.block_count;
  }
  table_slot_ =
      plan.reserve("optimizer.table", MemoryClass::workspace, segments_.size() * sizeof(AdamWTensor));
  if (!checks_state_) return;
  digests_slot_ =
      plan.reserve("optimizer.digests", MemoryClass::workspace, block_count_ * sizeof(std::uint64_t));
  damage_slot_ =
      plan.reserve("optimizer.damage", MemoryClass::workspace, sizeof(StateDamage), MemoryKind::host_visible);
}

void ShardedOptimizer::bind(Device& device, const MemoryArena& arena, std::byte* parameters,
                            ReducedGradients gradients) {
  parameters_ = parameters;
  if (dtype_ == DType::bf16) master_ = arena.at<float>(master_slot_);
  moment1_ = arena.at<float>(moment1_slot_);
  moment2_ = arena.at<float>(moment2_slot_);
  std::vector<AdamWTensor> table;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    table.push_back({
        .weight = master(segment),
        .moment1 = moment1_ + segment.shard_offset,
        .moment2 = moment2_ + segment.shard_offset,
        .gradient = gradients.of(segment),
        .copy = dtype_ == DType::bf16 ? working_copy(segment) : nullptr,
        .count = static_cast<std::int64_t>(segment.elements),
        .first_block = static_cast<std::int64_t>(first_blocks_[i]),
        .weight_decay = weight_decay_[i] ? static_cast<float>(config_.weight_decay) : 0.0F,
    });
  }
  if (checks_state_) {
    digests_ = arena.at<std::uint64_t>(digests_slot_);
    damage_ = arena.at<StateDamage>(damage_slot_);
  }
  table_ = arena.at<AdamWTensor>(table_slot_);
  write_memory(device, arena.at<AdamWTensor>(table_slot_), std::as_bytes(std::span(table)));
}

float* ShardedOptimizer::master(const Segment& segment) const {
  if (dtype_ == DType::bf16) return master_ + segment.shard_offset;
  return reinterpret_cast<float*>(parameters_) + segment.parameter_offset;
}

BFloat16* ShardedOptimizer::working_copy(const Segment& segment) const {
  return reinterpret_cast<BFloat16*>(parameters_) + segment.parameter_offset;
}

UpdateFactors update_factors(const OptimizerConfig& config, const UpdateScalars& scalars) {
  // The kernel averages with the betas as fp32 rounds them; the corrections must undo exactly those.
  const auto correction = [&](double beta) {
    return static_cast<float>(
        1.0 - std::pow(static_cast<double>(static_cast<float>(beta)), static_cast<double>(scalars.step)));
  };
  return {.learning_rate = static_cast<float>(scalars.learning_rate),
          .correction1 = correction(config.beta1),
          .correction2 = correction(config.beta2),
          .gradient_scale = static_cast<float>(scalars.gradient_scale)};
}

void ShardedOptimizer::launch_update(Device& device, const UpdateScalars& scalars) {
  UpdateFactors factors = update_factors(config_, scalars);
  if (const std::optional<double> factor = std::exchange(next_rate_factor_, std::nullopt))
    factors.learning_rate = static_cast<float>(scalars.learning_rate * *factor);
  device.launch(AdamW{.tensors = table_,
                      .tensor_count = static_cast<std::int64_t>(segments_.size()),
                      .block_count = static_cast<std::int64_t>(block_count_),
                      .learning_rate = factors.learning_rate,
                      .beta1 = static_cast<float>(config_.beta1),
                      .beta2 = static_cast<float>(config_.beta2),
                      .epsilon = static_cast<float>(config_.epsilon),
                      .correction1 = factors.correction1,
                      .correction2 = factors.correction2,
                      .gradient_scale = factors.gradient_scale,
                      .block_digests = digests_,
                      .checks_digests = has_digests_,
                      .damage = damage_});
  has_compared_ = has_digests_;
  has_digests_ = checks_state_;
  if (checks_state_) last_update_ = {.scalars = scalars, .factors = factors};
}

void ShardedOptimizer::forget_digests() {
  has_digests_ = has_compared_ = false;
  last_update_.reset();
}

std::optional<StateFinding> ShardedOptimizer::finding() const {
  if (!has_compared_ || damage_->block_count == 0) return std::nullopt;
  const auto after = std::ranges::upper_bound(first_blocks_, damage_->first_block);
  const auto segment = static_cast<std::size_t>(after - first_blocks_.begin() - 1);
  StateFinding finding{.block_count = damage_->block_count, .first_block = specs_[segment]};
  finding.first_block.kind.clear();
  finding.first_block.first_block += damage_->first_block - first_blocks_[segment];
  finding.first_block.block_count = 1;
  return finding;
}

void ShardedOptimizer::check_state(HostAccess& access, const std::function<void()>& pace) {
  has_compared_ = has_digests_;
  if (!has_digests_) return;
  *damage_ = {};
  constexpr std::uint64_t chunk = HostAccess::buffer_bytes / sizeof(float) / block_elements * block_elements;
  const auto read = [&access]<typename Number>(const Number* source, std::uint64_t count) {
    std::vector<Number> copy(count);
    std::memcpy(copy.data(), access.to_read(std::as_bytes(std::span(source, count))).data(),
                count * sizeof(Number));
    return copy;
  };
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    for (std::uint64_t begin = 0; begin < segment.elements; begin += chunk) {
      const std::uint64_t count = std::min(chunk, segment.elements - begin);
      const std::uint64_t shard = segment.shard_offset + begin;
      const std::vector<float> weight = read(master(segment) + begin, count);
      const std::vector<float> moment1 = read(moment1_ + shard, count),
                               moment2 = read(moment2_ + shard, count);
      const std::uint64_t first_block = first_blocks_[i] + begin / block_elements;
      const std::vector<std::uint64_t> digests =
          read(digests_ + first_block, (count + block_elements - 1) / block_elements);
      for (std::uint64_t block = 0; block < digests.size(); ++block) {
        const std::uint64_t at = block * block_elements;
        const std::uint64_t digest =
            state_digest(&weight[at], &moment1[at], &moment2[at],
                         static_cast<std::int64_t>(std::min<std::uint64_t>(block_elements, count - at)));
        if (digest == digests[block]) continue;
        ++damage_->block_count;
        damage_->first_block = std::min(damage_->first_block, first_block + block);
      }
      pace();
    }
  }
}

void ShardedOptimizer::launch_publish(Device& device) {
  forget_digests();
  launch_copies(device);
}

void ShardedOptimizer::launch_copies(Device& device) {
  if (dtype_ != DType::bf16) return;
  for (const std::vector<Segment>* const segments : {&segments_, &frozen_}) {
    for (const Segment& segment : *segments) {
      device.launch(Cast{.source = master(segment),
                         .target = working_copy(segment),
                         .count = static_cast<std::int64_t>(segment.elements)});
    }
  }
}

std::vector<OwnedState> ShardedOptimizer::state() {
  std::vector<OwnedState> pieces;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const Segment& segment = i < segments_.size() ? segments_[i] : frozen_[i - segments_.size()];
    pieces.push_back({.spec = specs_[i], .data = master(segment)});
  }
  const auto add_moments = [&](const char* kind, float* moments) {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      OwnedState& piece =
          pieces.emplace_back(OwnedState{.spec = specs_[i], .data = moments + segments_[i].shard_offset});
      piece.spec.kind = kind;
    }
  };
  add_moments("moment1", moment1_);
  add_moments("moment2", moment2_);
  return pieces;
}

}  // namespace holdfast::inline optim
