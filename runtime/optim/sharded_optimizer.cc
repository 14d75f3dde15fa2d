#include "runtime/optim/sharded_optimizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "kernels/elementwise.h"
#include "runtime/config/decay_groups.h"
#include "runtime/core/digest.h"
#include "runtime/core/random.h"
#include "runtime/device/host_access.h"
#include "runtime/optim/update_rule.h"

namespace holdfast::optim {
namespace {

// Number of blocks that are compared at a time: 200 MB, a fraction of a second.
constexpr std::uint64_t blocks_at_once = 4096;

// Kinds of state, as OptimizerConfig::state_kinds() names them.
constexpr std::string_view first_moment = "moment1", second_moment = "moment2", average = "ema";

void add(StateDamage& damage, const StateDamage& other) {
  damage.block_count += other.block_count;
  damage.first_block = std::min(damage.first_block, other.first_block);
}

// Returns the number of a piece's first block among the blocks of all tensors, whose ranges of numbers are drawn by name:
// two of them meet with a chance of 1 in a million for 10^12 parameters, and would then round alike.
std::uint64_t rounding_block_of(const ShardSpec& spec) {
  return digest_of(fmt::format("moments {} {}", spec.tensor, spec.slice)).low + spec.first_block;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(const BucketPlan& buckets, int rank, DType dtype,
                                   const OptimizerConfig& config, MemoryPlan& plan, bool checks_state,
                                   std::uint64_t seed)
    : config_(config),
      dtype_(dtype),
      moments_(config.moment_type()),
      rounding_stream_(mix64(seed, digest_of("moments").low)),
      segments_(buckets.segments(rank)),
      frozen_(buckets.frozen_segments(rank)),
      specs_(buckets.shard_specs(rank, "weight")),
      checks_state_(checks_state) {
  if (dtype == DType::bf16) {
    master_slot_ = plan.reserve("optimizer.master", MemoryClass::optimizer,
                                buckets.master_elements(rank) * sizeof(float));
  }
  for (const StateKind& kind : config.state_kinds()) {
    arrays_.push_back({.kind = kind,
                       .slot = plan.reserve(fmt::format("optimizer.{}", kind.name), MemoryClass::optimizer,
                                            buckets.shard_elements(rank) * bytes_of(kind.dtype))});
  }
  const Result<std::vector<DecayGroup>> groups = parse_decay_groups(config.weight_decay_groups);
  HF_CHECK(groups.ok(), "{}", groups.error().message);  // check_config has parsed them
  for (const Segment& segment : segments_) {
    const BucketTensor& tensor = buckets.tensor(segment);
    weight_decay_.push_back(
        decay_in_groups(*groups, tensor.name).value_or(tensor.weight_decay ? config.weight_decay : 0.0));
    first_blocks_.push_back(trained_blocks_);
    trained_blocks_ += segment.block_count;
  }
  for (const Segment& segment : frozen_) {
    first_blocks_.push_back(trained_blocks_ + frozen_blocks_);
    frozen_blocks_ += segment.block_count;
  }
  table_slot_ =
      plan.reserve("optimizer.table", MemoryClass::workspace, specs_.size() * sizeof(OptimizerTensor));
  if (!checks_state_) return;
  digests_slot_ = plan.reserve("optimizer.digests", MemoryClass::workspace,
                               (trained_blocks_ + frozen_blocks_) * sizeof(std::uint64_t));
  damage_slot_ = plan.reserve("optimizer.damage", MemoryClass::workspace, 3 * sizeof(StateDamage),
                              MemoryKind::host_visible);
}

void ShardedOptimizer::bind(Device& device, const MemoryArena& arena, std::byte* parameters,
                            ReducedGradients gradients) {
  parameters_ = parameters;
  if (dtype_ == DType::bf16) master_ = arena.at<float>(master_slot_);
  for (KeptArray& array : arrays_) array.memory = arena.at<std::byte>(array.slot);
  std::vector<OptimizerTensor> table;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    table.push_back({
        .weight = master(segment),
        .moment1 = kept(array_of(first_moment), segment),
        .moment2 = kept(array_of(second_moment), segment),
        .ema = reinterpret_cast<float*>(kept(array_of(average), segment)),
        .gradient = gradients.of(segment),
        .copy = dtype_ == DType::bf16 ? working_copy(segment) : nullptr,
        .count = static_cast<std::int64_t>(segment.elements),
        .first_block = static_cast<std::int64_t>(first_blocks_[i]),
        .weight_decay = static_cast<float>(weight_decay_[i]),
        .rounding_block = rounding_block_of(specs_[i]),
    });
  }
  trained_ = table;
  for (std::size_t i = 0; i < frozen_.size(); ++i) {
    table.push_back({.weight = master(frozen_[i]),
                     .count = static_cast<std::int64_t>(frozen_[i].elements),
                     .first_block = static_cast<std::int64_t>(first_blocks_[segments_.size() + i])});
  }
  if (checks_state_) {
    digests_ = arena.at<std::uint64_t>(digests_slot_);
    damage_ = arena.at<StateDamage>(damage_slot_);
    gradient_digests_ = gradients.digests;
  }
  table_ = arena.at<OptimizerTensor>(table_slot_);
  write_memory(device, arena.at<OptimizerTensor>(table_slot_), std::as_bytes(std::span(table)));
}

std::size_t ShardedOptimizer::array_of(std::string_view kind) const {
  const auto found =
      std::ranges::find_if(arrays_, [&](const KeptArray& each) { return each.kind.name == kind; });
  return static_cast<std::size_t>(found - arrays_.begin());
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

auto ShardedOptimizer::visit_update_of(const UpdateFactors& factors, std::int64_t step,
                                       const std::vector<OptimizerTensor>* kept, const auto& visit) const {
  return visit_update(config_, [&](auto op) {
    op.tensors = kept != nullptr ? kept->data() : table_;
    op.tensor_count = static_cast<std::int64_t>(segments_.size());
    op.block_count = static_cast<std::int64_t>(trained_blocks_);
    op.learning_rate = factors.learning_rate;
    if constexpr (requires { op.correction1; }) {
      op.correction1 = factors.correction1;
      op.correction2 = factors.correction2;
    }
    op.gradient_scale = factors.gradient_scale;
    op.rounding_key = mix64(rounding_stream_, static_cast<std::uint64_t>(step));
    op.keeps_state = kept != nullptr;
    op.block_digests = digests_;
    op.checks_digests = has_digests_;
    op.damage = damage_;
    op.gradient_digests = gradient_digests_;
    op.gradient_damage = gradient_digests_ != nullptr ? &damage_[2] : nullptr;
    return visit(op);
  });
}

bool ShardedOptimizer::can_keep(const Device& device) const {
  if (!checks_state_ || !device.host_sees_memory()) return false;
  return visit_update_of({}, 1, &trained_, [&](const auto& keeping) {
    auto plain = keeping;
    plain.tensors = table_;
    plain.keeps_state = false;
    const KernelChoice& choice = device.kernels()[static_cast<std::size_t>(keeping.id)];
    const auto computes_both = [&](const kernels::ImplementationOrder& order) {
      return &first_that_computes(order, &plain) == &first_that_computes(order, &keeping);
    };
    return computes_both(choice.order) &&
           std::ranges::all_of(choice.rules,
                               [&](const kernels::KernelRule& rule) { return computes_both(rule.order); });
  });
}

std::vector<OptimizerTensor> ShardedOptimizer::keeping_table(std::span<std::byte* const> targets) const {
  HF_CHECK(targets.size() == specs_.size() + arrays_.size() * segments_.size());  // as state() has them
  std::vector<OptimizerTensor> table = trained_;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto target = [&](std::size_t array) {
      return array < arrays_.size() ? targets[specs_.size() + array * segments_.size() + i] : nullptr;
    };
    table[i].kept_weight = reinterpret_cast<float*>(targets[i]);
    table[i].kept_moment1 = target(array_of(first_moment));
    table[i].kept_moment2 = target(array_of(second_moment));
    table[i].kept_ema = reinterpret_cast<float*>(target(array_of(average)));
  }
  return table;
}

void ShardedOptimizer::launch_update(Device& device, const UpdateScalars& scalars,
                                     const std::vector<OptimizerTensor>* kept) {
  UpdateFactors factors = update_factors(config_, scalars);
  if (const std::optional<double> factor = std::exchange(next_rate_factor_, std::nullopt))
    factors.learning_rate = static_cast<float>(scalars.learning_rate * *factor);
  visit_update_of(factors, scalars.step, kept, [&](const auto& op) { device.launch(op); });
  has_compared_ = has_digests_;
  has_digests_ = checks_state_;
  if (checks_state_) last_update_ = {.scalars = scalars, .factors = factors};
}

void ShardedOptimizer::forget_digests() {
  has_digests_ = has_compared_ = false;
  last_update_.reset();
  frozen_check_.reset();
  frozen_check_before_ = 0;
}

void ShardedOptimizer::load_digests(Device& device, std::span<const std::byte> digests) {
  HF_CHECK(checks_state_ && digests.size() == (trained_blocks_ + frozen_blocks_) * sizeof(std::uint64_t));
  forget_digests();
  write_memory(device, digests_, digests);
  has_digests_ = true;
}

// Leaves digests of the state as it is.
void ShardedOptimizer::launch_digests(Device& device) {
  forget_digests();
  if (!checks_state_) return;
  device.launch(OptimizerDigest{.tensors = table_,
                                .tensor_count = static_cast<std::int64_t>(specs_.size()),
                                .block_count = static_cast<std::int64_t>(trained_blocks_ + frozen_blocks_),
                                .block_digests = digests_,
                                .moments = moments_});
  has_digests_ = true;
}

void ShardedOptimizer::launch_comparison(Device& device, std::uint64_t first_block, std::uint64_t block_count,
                                         StateDamage* damage) {
  device.launch(OptimizerDigest{.tensors = table_,
                                .tensor_count = static_cast<std::int64_t>(specs_.size()),
                                .first_block = static_cast<std::int64_t>(first_block),
                                .block_count = static_cast<std::int64_t>(block_count),
                                .block_digests = digests_,
                                .checks_digests = true,
                                .moments = moments_,
                                .damage = damage});
}

std::optional<StateFinding> ShardedOptimizer::finding() const {
  StateDamage damage;
  if (has_compared_) add(damage, damage_[0]);
  if (frozen_check_.has_value()) add(damage, damage_[1]);
  const bool is_of_gradients = damage.block_count == 0;
  if (is_of_gradients && gradient_digests_ != nullptr && last_update_.has_value()) add(damage, damage_[2]);
  if (damage.block_count == 0) return std::nullopt;
  const auto after = std::ranges::upper_bound(first_blocks_, damage.first_block);
  const auto segment = static_cast<std::size_t>(after - first_blocks_.begin() - 1);
  StateFinding finding{
      .block_count = damage.block_count, .first_block = specs_[segment], .is_of_gradients = is_of_gradients};
  finding.first_block.kind.clear();
  finding.first_block.first_block += damage.first_block - first_blocks_[segment];
  finding.first_block.block_count = 1;
  if (frozen_check_.has_value() && damage_[1].block_count > 0)
    finding.frozen_verified_step = frozen_check_before_;
  return finding;
}

void ShardedOptimizer::check_state(Device& device, std::uint64_t step, const std::function<void()>& wait) {
  has_compared_ = has_digests_;
  if (!has_digests_) return;
  const auto compare = [&](std::uint64_t first_block, std::uint64_t block_count) {
    StateDamage all;
    for (std::uint64_t begin = 0; begin < block_count; begin += blocks_at_once) {
      launch_comparison(device, first_block + begin, std::min(blocks_at_once, block_count - begin), damage_);
      wait();
      add(all, *damage_);
    }
    return all;
  };
  const std::array<StateDamage, 2> found = {compare(0, trained_blocks_),
                                            compare(trained_blocks_, frozen_blocks_)};
  std::ranges::copy(found, damage_);
  begin_frozen_check(step);
}

void ShardedOptimizer::launch_frozen_check(Device& device, std::uint64_t step) {
  if (!has_digests_ || frozen_blocks_ == 0) return;
  launch_comparison(device, trained_blocks_, frozen_blocks_, &damage_[1]);
  begin_frozen_check(step);
}

// Notes that a comparison of frozen tensors has replaced the one before, which found nothing: else the run would
// have gone back.
void ShardedOptimizer::begin_frozen_check(std::uint64_t step) {
  frozen_check_before_ = frozen_check_.value_or(0);
  frozen_check_ = step;
}

void ShardedOptimizer::launch_publish(Device& device) {
  launch_digests(device);
  launch_copies(device);
}

void ShardedOptimizer::launch_average_start(Device& device) {
  if (config_.ema <= 0.0) return;
  for (const Segment& segment : segments_)
    device.launch(Copy{.source = master(segment),
                       .target = kept(array_of(average), segment),
                       .bytes = static_cast<std::int64_t>(segment.elements * sizeof(float))});
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
    pieces.push_back({.spec = specs_[i],
                      .data = reinterpret_cast<std::byte*>(master(segment)),
                      .digests = checks_state_ ? digests_ + first_blocks_[i] : nullptr});
  }
  for (std::size_t array = 0; array < arrays_.size(); ++array) {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      OwnedState& piece =
          pieces.emplace_back(OwnedState{.spec = specs_[i], .data = kept(array, segments_[i])});
      piece.spec.kind = arrays_[array].kind.name;
      piece.spec.dtype = arrays_[array].kind.dtype;
    }
  }
  return pieces;
}

}  // namespace holdfast::optim
