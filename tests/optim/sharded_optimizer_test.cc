#include "runtime/optim/sharded_optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/exact_sum.h"
#include "runtime/core/random.h"

namespace holdfast::test {
namespace {

using Tensors = std::map<std::string, std::vector<float>>;

// Matrices of several blocks and vectors of less than one, in two buckets, and a frozen one.
std::vector<Bucket> with_frozen(std::vector<Bucket> buckets) {
  buckets.push_back({.tensors = {{.name = "frozen.weight", .shape = {60, 150}, .is_frozen = true},
                                 {.name = "frozen.bias", .shape = {50}, .is_frozen = true}}});
  return buckets;
}

std::vector<Bucket> two_buckets() {
  Bucket first, second;
  first.tensors = {{.name = "late.weight", .shape = {70, 130}, .weight_decay = true},
                   {.name = "late.bias", .shape = {70}, .weight_decay = false}};
  second.tensors = {{.name = "early.norm", .shape = {33}, .weight_decay = false},
                    {.name = "early.weight", .shape = {90, 97}, .weight_decay = true}};
  return {first, second};
}

OptimizerConfig adamw(DType moments = DType::fp32) {
  OptimizerConfig config;
  config.moments = name_of(moments);
  config.beta1 = 0.9;
  config.beta2 = 0.999;
  config.epsilon = 1e-8;
  config.weight_decay = 0.1;
  return config;
}

OptimizerConfig lion(DType moments = DType::fp32) {
  OptimizerConfig config = adamw(moments);
  config.name = "lion";
  config.beta2 = 0.99;
  return config;
}

// A rule of updates with moments of a type, and the kinds of state that it keeps.
struct RuleCase {
  OptimizerConfig (*config)(DType);
  std::vector<const char*> kinds;
};
const RuleCase rule_cases[] = {{&adamw, {"weight", "moment1", "moment2"}}, {&lion, {"weight", "moment1"}}};

float value_at(const std::string& tensor, std::uint64_t element, std::uint64_t seed) {
  return RandomStream(seed, tensor.size() * 31 + static_cast<std::uint64_t>(tensor.front())).normal(element);
}

// One rank's optimizer with memory of its own. Gradients and initial weights are functions of (tensor,
// element, seed).
class Rank {
 public:
  Rank(int rank, int ranks, DType dtype, bool checks_state = true,
       std::vector<Bucket> buckets = two_buckets(), const OptimizerConfig& config = adamw(),
       std::uint64_t seed = 1)
      : device_(make_cpu_device({.threads = 2})),
        buckets_(std::move(buckets), ranks),
        rank_(rank),
        optimizer_(buckets_, rank, dtype, config, plan_, checks_state, seed) {
    parameters_ =
        plan_.reserve("parameters", MemoryClass::weights, buckets_.parameter_elements() * bytes_of(dtype));
    accumulator_ = plan_.reserve("accumulator", MemoryClass::gradients,
                                 buckets_.accumulator_elements(rank) * sizeof(float));
    std::uint64_t blocks = 0;
    for (const Segment& segment : optimizer_.segments()) blocks += segment.block_count;
    digests_ = plan_.reserve("digests", MemoryClass::workspace, blocks * sizeof(std::uint64_t));
    sums_ = plan_.reserve("sums", MemoryClass::workspace, blocks * sizeof(double));
    arena_ = allocate_memory(*device_, plan_).value();
    optimizer_.bind(
        *device_, arena_, parameters(),
        {.values = arena_.at<float>(accumulator_), .digests = arena_.at<std::uint64_t>(digests_)});
    for (const OwnedState& piece : optimizer_.state()) {
      if (piece.spec.kind != "weight") continue;
      for (std::uint64_t i = 0; i < piece.spec.element_count(); ++i) {
        reinterpret_cast<float*>(piece.data)[i] =
            value_at(piece.spec.tensor, piece.spec.first_element() + i, 1);
      }
    }
    publish();
  }

  void set_gradients(std::uint64_t seed, float scale = 1.0F) {
    for (const Segment& segment : optimizer_.segments()) {
      for (std::uint64_t i = 0; i < segment.elements; ++i) {
        arena_.at<float>(accumulator_)[segment.shard_offset + i] =
            scale * value_at(name_of(segment), segment.first_block * block_elements + i, seed);
      }
    }
    take_norm();
  }
  // Flips a bit of the gradient of an owned element.
  void flip_gradient_bit(const std::string& tensor, std::uint64_t element, int bit) {
    for (const Segment& segment : optimizer_.segments()) {
      const std::uint64_t first = segment.first_block * block_elements;
      if (name_of(segment) != tensor || element < first || element - first >= segment.elements) continue;
      float& value = arena_.at<float>(accumulator_)[segment.shard_offset + element - first];
      value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1U << bit);
      return;
    }
    FAIL() << "this rank does not own element " << element << " of " << tensor;
  }
  void update(std::int64_t step, double learning_rate, double gradient_scale) {
    optimizer_.launch_update(
        *device_, {.step = step, .learning_rate = learning_rate, .gradient_scale = gradient_scale});
    device_->synchronize();
  }
  // Updates, and returns what the update kept of each piece of state(), but for every third one.
  std::vector<std::vector<std::byte>> update_keeping(std::int64_t step) {
    set_gradients(static_cast<std::uint64_t>(step) + 10);
    std::vector<std::vector<std::byte>> kept;
    for (const OwnedState& piece : optimizer_.state())
      kept.emplace_back(piece.spec.byte_count(), std::byte{7});
    std::vector<std::byte*> targets;
    for (std::vector<std::byte>& each : kept)
      targets.push_back(targets.size() % 3 == 2 ? nullptr : each.data());
    const std::vector<OptimizerTensor> table = optimizer_.keeping_table(targets);
    optimizer_.launch_update(
        *device_, {.step = step, .learning_rate = 1e-3 * static_cast<double>(step), .gradient_scale = 0.5},
        &table);
    device_->synchronize();
    return kept;
  }
  const Device& device() const { return *device_; }
  void update_with_gradients_of(std::int64_t step) {
    set_gradients(static_cast<std::uint64_t>(step) + 10);
    update(step, 1e-3 * static_cast<double>(step), 0.5);
  }
  // Flips a bit of an owned element in memory.
  void flip_bit(const std::string& kind, const std::string& tensor, std::uint64_t element, int bit) {
    for (const OwnedState& piece : optimizer_.state()) {
      const ShardSpec& spec = piece.spec;
      if (spec.kind != kind || spec.tensor != tensor || element < spec.first_element()) continue;
      if (element - spec.first_element() >= spec.element_count()) continue;
      const std::uint64_t at = element - spec.first_element();
      piece.data[at * bytes_of(spec.dtype) + static_cast<std::size_t>(bit / 8)] ^= std::byte{1} << bit % 8;
      return;
    }
    FAIL() << "this rank does not own element " << element << " of " << tensor;
  }
  void publish() {
    optimizer_.launch_publish(*device_);
    device_->synchronize();
  }
  // Begins averages with the weights, as a start does.
  void start_average() {
    optimizer_.launch_average_start(*device_);
    publish();
  }
  void copy_again() {
    optimizer_.launch_copies(*device_);
    device_->synchronize();
  }
  std::optional<StateFinding> check_state() {
    optimizer_.check_state(*device_, 1, [this] { device_->synchronize(); });
    return optimizer_.finding();
  }
  std::optional<StateFinding> check_frozen(std::uint64_t step) {
    optimizer_.launch_frozen_check(*device_, step);
    device_->synchronize();
    return optimizer_.finding();
  }
  ShardedOptimizer& optimizer() { return optimizer_; }
  // What this rank owns, put where it belongs in the whole tensors.
  void collect(const std::string& kind, Tensors& tensors) {
    for (const OwnedState& piece : optimizer_.state()) {
      if (piece.spec.kind != kind) continue;
      std::vector<float>& tensor = tensors[piece.spec.tensor];
      tensor.resize(piece.spec.tensor_elements(), std::nanf(""));
      for (std::uint64_t i = 0; i < piece.spec.element_count(); ++i) {
        tensor[piece.spec.first_element() + i] = piece.spec.dtype == DType::bf16
                                                     ? to_float(reinterpret_cast<BFloat16*>(piece.data)[i])
                                                     : reinterpret_cast<float*>(piece.data)[i];
      }
    }
  }
  // bf16 runs: each owned element's working copy is its master, rounded.
  void expect_rounded_copies() {
    const auto* copies = reinterpret_cast<const BFloat16*>(parameters());
    std::vector<OwnedState> state = optimizer_.state();
    for (std::size_t i = 0; i < optimizer_.segments().size(); ++i) {
      const Segment& segment = optimizer_.segments()[i];
      const auto* masters = reinterpret_cast<const float*>(state[i].data);
      for (std::uint64_t element = 0; element < segment.elements; ++element) {
        ASSERT_EQ(copies[segment.parameter_offset + element].bits, to_bfloat16(masters[element]).bits)
            << name_of(segment) << " " << element;
      }
    }
  }
  std::vector<std::byte> parameter_bytes() const {
    const auto bytes = arena_.bytes(parameters_);
    return {bytes.begin(), bytes.end()};
  }

 private:
  // Takes the norm as LaneSum does.
  void take_norm() {
    std::uint64_t block = 0;
    for (const Segment& segment : optimizer_.segments()) {
      device_->launch(SquareSum{.values = arena_.at<float>(accumulator_) + segment.shard_offset,
                                .count = static_cast<std::int64_t>(segment.elements),
                                .sums = arena_.at<double>(sums_) + block,
                                .digests = arena_.at<std::uint64_t>(digests_) + block});
      block += segment.block_count;
    }
    device_->synchronize();
  }
  std::byte* parameters() const { return arena_.at<std::byte>(parameters_); }
  const std::string& name_of(const Segment& segment) const {
    const Bucket& bucket = buckets_.buckets()[static_cast<std::size_t>(segment.bucket)];
    return bucket.tensors[static_cast<std::size_t>(segment.tensor)].name;
  }

  MemoryPlan plan_;
  MemoryArena arena_;
  std::unique_ptr<Device> device_;
  BucketPlan buckets_;
  int rank_;
  ShardedOptimizer optimizer_;
  MemoryPlan::Slot parameters_, accumulator_, digests_, sums_;
};

struct Updates {
  std::map<std::string, Tensors> state;  // by kind
};

Updates updates_of(const OptimizerConfig& config, int ranks, DType dtype, std::int64_t steps = 3,
                   std::uint64_t seed = 1) {
  Updates run;
  for (int r = 0; r < ranks; ++r) {
    Rank rank(r, ranks, dtype, /*checks_state=*/true, two_buckets(), config, seed);
    for (std::int64_t step = 1; step <= steps; ++step) {
      rank.set_gradients(static_cast<std::uint64_t>(step) + 10);
      rank.update(step, 1e-3 * static_cast<double>(step), 0.5);
      if (dtype == DType::bf16) rank.expect_rounded_copies();
    }
    for (const char* kind : {"weight", "moment1", "moment2"}) rank.collect(kind, run.state[kind]);
  }
  return run;
}

Updates three_updates(int ranks, DType dtype, DType moments = DType::fp32, std::uint64_t seed = 1) {
  return updates_of(adamw(moments), ranks, dtype, 3, seed);
}

class ShardedOptimizerTest : public testing::TestWithParam<DType> {};

// Number of elements of a kind that differ.
std::size_t differences(const Updates& one, const Updates& other, const std::string& kind) {
  std::size_t count = 0;
  for (const auto& [name, values] : one.state.at(kind)) {
    const std::vector<float>& others = other.state.at(kind).at(name);
    EXPECT_EQ(others.size(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      count += std::memcmp(&others[i], &values[i], sizeof(float)) == 0 ? 0 : 1;
  }
  return count;
}

TEST_P(ShardedOptimizerTest, AnyNumberOfRanksMakesTheSameUpdates) {
  for (const RuleCase& rule : rule_cases) {
    for (const DType moments : {DType::fp32, DType::bf16}) {
      const Updates alone = updates_of(rule.config(moments), 1, GetParam());
      for (const int ranks : {2, 3}) {
        const Updates shared = updates_of(rule.config(moments), ranks, GetParam());
        for (const char* kind : rule.kinds)
          EXPECT_EQ(differences(alone, shared, kind), 0U)
              << kind << " on " << ranks << ", " << name_of(moments);
      }
    }
  }
}

// Moments of another seed are rounded in other ways: to the same number in half of the cases, or nearly so.
TEST_P(ShardedOptimizerTest, TheSeedDecidesHowMomentsAreRounded) {
  const Updates one = three_updates(1, GetParam(), DType::bf16, 1),
                other = three_updates(1, GetParam(), DType::bf16, 2);
  for (const char* kind : {"moment1", "moment2"}) EXPECT_GT(differences(one, other, kind), 5000U) << kind;
  const Updates fp32 = three_updates(1, GetParam(), DType::fp32, 1);
  EXPECT_EQ(differences(fp32, three_updates(1, GetParam(), DType::fp32, 2), "moment1"), 0U);
}

// Two updates that differ in the number of the step alone, which an average does not depend on. Equal bits in both would
// round a moment that keeps its value in the same direction for good.
TEST_P(ShardedOptimizerTest, EveryStepRoundsMomentsInOtherWays) {
  Tensors moments[2];
  for (const std::int64_t step : {1, 2}) {
    Rank rank(0, 1, GetParam(), /*checks_state=*/true, two_buckets(), adamw(DType::bf16));
    rank.set_gradients(11);
    rank.update(step, 1e-3, 0.5);
    rank.collect("moment1", moments[step - 1]);
  }
  const Updates one{.state = {{"moment1", moments[0]}}}, other{.state = {{"moment1", moments[1]}}};
  EXPECT_GT(differences(one, other, "moment1"), 5000U);
}

// The weights have the averages before they are rounded, so the first update has all bits of the one in fp32.
TEST_P(ShardedOptimizerTest, TheFirstUpdateOfWeightsIsThatOfFp32Moments) {
  std::map<DType, Tensors> weights;
  for (const DType moments : {DType::fp32, DType::bf16}) {
    Rank rank(0, 1, GetParam(), /*checks_state=*/true, two_buckets(), adamw(moments));
    rank.update_with_gradients_of(1);
    rank.collect("weight", weights[moments]);
  }
  EXPECT_EQ(weights[DType::fp32], weights[DType::bf16]);
}

TEST_P(ShardedOptimizerTest, FlippedBitsOfBFloat16MomentsAreFound) {
  for (const RuleCase& rule : rule_cases) {
    for (const char* kind : rule.kinds) {
      Rank rank(0, 1, GetParam(), /*checks_state=*/true, two_buckets(), rule.config(DType::bf16));
      for (const std::int64_t step : {1, 2}) rank.update_with_gradients_of(step);
      EXPECT_FALSE(rank.optimizer().finding().has_value());
      rank.flip_bit(kind, "late.weight", 9099, 0);
      rank.update_with_gradients_of(3);
      const std::optional<StateFinding> finding = rank.optimizer().finding();
      ASSERT_TRUE(finding.has_value()) << kind;
      EXPECT_EQ(finding->block_count, 1U);
      EXPECT_EQ(finding->first_block.tensor, "late.weight");
      EXPECT_EQ(finding->first_block.first_block, 2U);
    }
  }
}

// A second copy of what is trained, as the update left it, with the same bits of everything else.
TEST_P(ShardedOptimizerTest, AnUpdateKeepsTheStateThatItLeaves) {
  for (const OptimizerConfig& config : {adamw(), adamw(DType::bf16), lion(), lion(DType::bf16)}) {
    for (const int ranks : {1, 3}) {
      for (int r = 0; r < ranks; ++r) {
        Rank plain(r, ranks, GetParam(), true, with_frozen(two_buckets()), config);
        Rank keeping(r, ranks, GetParam(), true, with_frozen(two_buckets()), config);
        ASSERT_TRUE(keeping.optimizer().can_keep(keeping.device()));
        for (const std::int64_t step : {1, 2, 3}) {
          plain.update_with_gradients_of(step);
          const std::vector<std::vector<std::byte>> kept = keeping.update_keeping(step);
          const std::vector<OwnedState> expected = plain.optimizer().state(),
                                        state = keeping.optimizer().state();
          const std::size_t trained = keeping.optimizer().segments().size();
          for (std::size_t i = 0; i < state.size(); ++i) {
            const std::span<const std::byte> live(state[i].data, state[i].spec.byte_count());
            EXPECT_TRUE(std::ranges::equal(live, std::span(expected[i].data, live.size()))) << i;
            const bool is_frozen = state[i].spec.kind == "weight" && i >= trained;
            const bool is_kept = i % 3 != 2 && !is_frozen;
            EXPECT_TRUE(
                is_kept ? std::ranges::equal(kept[i], live)
                        : std::ranges::all_of(kept[i], [](std::byte each) { return each == std::byte{7}; }))
                << i << " at step " << step;
          }
          EXPECT_FALSE(keeping.optimizer().finding().has_value());
        }
        EXPECT_EQ(keeping.parameter_bytes(), plain.parameter_bytes());
      }
    }
  }
}

// An update without digests keeps nothing, because nobody could tell whether it is whole.
TEST_P(ShardedOptimizerTest, WithoutDigestsNoUpdateKeepsTheState) {
  Rank rank(0, 1, GetParam(), /*checks_state=*/false);
  EXPECT_FALSE(rank.optimizer().can_keep(rank.device()));
}

// The textbook formula in double.
TEST_P(ShardedOptimizerTest, UpdatesAreAdamW) {
  const Updates run = three_updates(1, GetParam());
  for (const auto& [name, weights] : run.state.at("weight")) {
    const double decay = name.ends_with(".weight") ? 0.1 : 0.0;
    for (std::uint64_t i = 0; i < weights.size(); ++i) {
      double weight = static_cast<double>(value_at(name, i, 1)), moment1 = 0.0, moment2 = 0.0;
      for (int step = 1; step <= 3; ++step) {
        const double gradient =
            0.5 * static_cast<double>(value_at(name, i, static_cast<std::uint64_t>(step) + 10));
        moment1 = 0.9 * moment1 + 0.1 * gradient;
        moment2 = 0.999 * moment2 + 0.001 * gradient * gradient;
        const double mean = moment1 / (1.0 - std::pow(0.9, step)),
                     square = moment2 / (1.0 - std::pow(0.999, step));
        weight -= 1e-3 * step * (decay * weight + mean / (std::sqrt(square) + 1e-8));
      }
      // Three updates of at most 6e-3 in all, to 1e-5 of them, and three roundings of the weight.
      ASSERT_NEAR(static_cast<double>(weights[i]), weight, 6e-8 + 2e-7 * std::abs(weight))
          << name << " " << i;
    }
  }
}

// Twelve updates by the formula of the paper in double.
TEST_P(ShardedOptimizerTest, UpdatesAreLion) {
  constexpr int steps = 12;
  const Updates run = updates_of(lion(), 1, GetParam(), steps);
  EXPECT_TRUE(run.state.at("moment2").empty());
  for (const auto& [name, weights] : run.state.at("weight")) {
    const double decay = name.ends_with(".weight") ? 0.1 : 0.0;
    const std::vector<float>& kept = run.state.at("moment1").at(name);
    for (std::uint64_t i = 0; i < weights.size(); ++i) {
      double weight = static_cast<double>(value_at(name, i, 1)), moment = 0.0;
      for (int step = 1; step <= steps; ++step) {
        const double gradient =
            0.5 * static_cast<double>(value_at(name, i, static_cast<std::uint64_t>(step) + 10));
        const double average = 0.9 * moment + 0.1 * gradient;
        const double sign = average > 0 ? 1.0 : (average < 0 ? -1.0 : 0.0);
        weight -= 1e-3 * step * (decay * weight + sign);
        moment = 0.99 * moment + 0.01 * gradient;
      }
      ASSERT_NEAR(static_cast<double>(weights[i]), weight, 1e-7 + 1e-6 * std::abs(weight))
          << name << " " << i;
      ASSERT_NEAR(static_cast<double>(kept[i]), moment, 1e-7) << name << " " << i;
    }
  }
}

// What the second moment takes is in no plan of memory, and in no state that is saved.
TEST_P(ShardedOptimizerTest, LionKeepsOneMoment) {
  const auto kept = [](const OptimizerConfig& config) {
    MemoryPlan plan;
    const ShardedOptimizer optimizer(BucketPlan(two_buckets(), 1), 0, DType::fp32, config, plan);
    return plan.total_bytes(MemoryClass::optimizer);
  };
  for (const DType moments : {DType::fp32, DType::bf16}) {
    EXPECT_EQ(2 * kept(lion(moments)), kept(adamw(moments)));
    EXPECT_EQ(lion(moments).kept_bytes(), bytes_of(moments));
    EXPECT_EQ(adamw(moments).kept_bytes(), 2 * bytes_of(moments));
    Rank rank(0, 1, GetParam(), /*checks_state=*/true, two_buckets(), lion(moments));
    for (const OwnedState& piece : rank.optimizer().state()) EXPECT_NE(piece.spec.kind, "moment2");
  }
}

OptimizerConfig averaged(DType moments = DType::fp32) {
  OptimizerConfig config = adamw(moments);
  config.ema = 0.75;
  return config;
}

// By the definition in double, of the weights after each update; the same on any number of ranks. Frozen tensors have none.
TEST_P(ShardedOptimizerTest, AveragesFollowTheWeights) {
  std::map<std::string, std::vector<double>> expected;
  Tensors alone, plain;
  for (const int ranks : {1, 3}) {
    Tensors averages, weights;
    for (int r = 0; r < ranks; ++r) {
      Rank rank(r, ranks, GetParam(), true, with_frozen(two_buckets()), averaged());
      rank.start_average();
      for (const std::int64_t step : {1, 2, 3}) {
        rank.update_with_gradients_of(step);
        EXPECT_FALSE(rank.optimizer().finding()) << step;
        if (ranks > 1) continue;
        Tensors now;
        rank.collect("weight", now);
        for (const auto& [name, values] : now) {
          std::vector<double>& of = expected[name];
          for (std::uint64_t i = 0; i < values.size(); ++i) {
            if (step == 1) of.push_back(static_cast<double>(value_at(name, i, 1)));
            of[i] += 0.25 * (static_cast<double>(values[i]) - of[i]);
          }
        }
      }
      rank.collect("ema", averages);
      rank.collect("weight", weights);
    }
    EXPECT_EQ(averages.size(), 4U);
    for (const auto& [name, values] : averages) {
      for (std::uint64_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(static_cast<double>(values[i]), expected.at(name)[i],
                    3e-7 * std::abs(expected.at(name)[i]) + 1e-9)
            << name << " " << i;
    }
    if (ranks == 1) alone = averages;
    EXPECT_EQ(averages, alone);
  }
  // The weights are those of a run without averages.
  Rank without(0, 1, GetParam(), true, with_frozen(two_buckets())),
      with(0, 1, GetParam(), true, with_frozen(two_buckets()), averaged());
  Tensors one, other;
  for (const std::int64_t step : {1, 2, 3}) {
    without.update_with_gradients_of(step);
    with.update_with_gradients_of(step);
  }
  without.collect("weight", one);
  with.collect("weight", other);
  EXPECT_EQ(one, other);
}

TEST_P(ShardedOptimizerTest, AFlippedBitOfAnAverageIsFound) {
  Rank rank(0, 1, GetParam(), true, with_frozen(two_buckets()), averaged(DType::bf16));
  rank.start_average();
  rank.flip_bit("ema", "late.weight", 9099, 0);
  EXPECT_TRUE(rank.check_state()) << "it was published";
  rank.flip_bit("ema", "late.weight", 9099, 0);
  rank.update_with_gradients_of(1);
  EXPECT_FALSE(rank.optimizer().finding());
  rank.flip_bit("ema", "late.weight", 9099, 31);
  rank.update_with_gradients_of(2);
  const std::optional<StateFinding> finding = rank.optimizer().finding();
  ASSERT_TRUE(finding.has_value());
  EXPECT_EQ(finding->block_count, 1U);
  EXPECT_EQ(finding->first_block.tensor, "late.weight");
  EXPECT_EQ(finding->first_block.first_block, 2U);
}

TEST_P(ShardedOptimizerTest, AnUpdateKeepsAverages) {
  Rank rank(0, 1, GetParam(), true, with_frozen(two_buckets()), averaged());
  rank.start_average();
  ASSERT_TRUE(rank.optimizer().can_keep(rank.device()));
  const std::vector<std::vector<std::byte>> kept = rank.update_keeping(1);
  const std::vector<OwnedState> state = rank.optimizer().state();
  std::size_t averages = 0;
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (state[i].spec.kind != "ema" || i % 3 == 2) continue;
    ++averages;
    EXPECT_TRUE(std::ranges::equal(kept[i], std::span(state[i].data, state[i].spec.byte_count()))) << i;
  }
  EXPECT_GE(averages, 2U);
}

TEST_P(ShardedOptimizerTest, WithoutGradientsOnlyMatricesDecay) {
  Rank rank(0, 1, GetParam());
  rank.set_gradients(1, 0.0F);
  rank.update(1, 0.5, 1.0);
  Tensors weights;
  rank.collect("weight", weights);
  for (const auto& [name, values] : weights) {
    const double factor = name.ends_with(".weight") ? 1.0 - 0.5 * 0.1 : 1.0;
    for (std::uint64_t i = 0; i < values.size(); ++i) {
      const double expected = factor * static_cast<double>(value_at(name, i, 1));
      ASSERT_NEAR(static_cast<double>(values[i]), expected, 2e-7 * std::abs(expected)) << name << " " << i;
    }
  }
}

// A group decides over the kind of a tensor, and the first that matches over the others.
TEST_P(ShardedOptimizerTest, GroupsDecayAsTheySay) {
  OptimizerConfig config = adamw();
  config.weight_decay_groups = {"late.*=0.02", "*.norm=0.3", "*.weight=0", "late.bias=1"};
  const std::map<std::string, double> decays = {
      {"late.weight", 0.02}, {"late.bias", 0.02}, {"early.norm", 0.3}, {"early.weight", 0.0}};
  for (const int ranks : {1, 2}) {
    Tensors weights;
    for (int r = 0; r < ranks; ++r) {
      Rank rank(r, ranks, GetParam(), true, two_buckets(), config);
      rank.set_gradients(1, 0.0F);
      rank.update(1, 0.5, 1.0);
      rank.collect("weight", weights);
    }
    ASSERT_EQ(weights.size(), decays.size());
    for (const auto& [name, values] : weights) {
      for (std::uint64_t i = 0; i < values.size(); ++i) {
        const double expected = (1.0 - 0.5 * decays.at(name)) * static_cast<double>(value_at(name, i, 1));
        ASSERT_NEAR(static_cast<double>(values[i]), expected, 2e-7 * std::abs(expected)) << name << " " << i;
      }
    }
  }
}

TEST_P(ShardedOptimizerTest, ARankLeavesTheOthersParametersAlone) {
  Rank rank(1, 3, GetParam());
  const std::vector<std::byte> before = rank.parameter_bytes();
  const std::size_t element = bytes_of(GetParam());
  rank.set_gradients(5);
  rank.update(1, 1e-1, 1.0);
  const std::vector<std::byte> after = rank.parameter_bytes();
  const BucketPlan buckets(two_buckets(), 3);
  for (const int bucket : {0, 1}) {
    for (const int other : {0, 2}) {
      const ElementRange range = buckets.parameter_range(bucket, other);
      EXPECT_TRUE(std::equal(after.begin() + static_cast<std::ptrdiff_t>(range.begin * element),
                             after.begin() + static_cast<std::ptrdiff_t>(range.end * element),
                             before.begin() + static_cast<std::ptrdiff_t>(range.begin * element)));
    }
  }
  EXPECT_NE(before, after);
}

TEST_P(ShardedOptimizerTest, AFlippedBitIsFoundWithoutAnUpdate) {
  for (const char* kind : {"weight", "moment1", "moment2"}) {
    Rank rank(0, 2, GetParam());
    EXPECT_FALSE(rank.check_state());
    rank.flip_bit(kind, "late.weight", 5, 30);
    EXPECT_TRUE(rank.check_state()) << "no update has written it, but it was published";
    rank.flip_bit(kind, "late.weight", 5, 30);
    rank.update_with_gradients_of(1);
    EXPECT_FALSE(rank.check_state());
    rank.copy_again();
    EXPECT_FALSE(rank.check_state()) << "it has not changed";
    const std::vector<std::byte> before = rank.parameter_bytes();
    rank.flip_bit(kind, "late.weight", 4096 + 123, 31);
    const std::optional<StateFinding> finding = rank.check_state();
    ASSERT_TRUE(finding) << kind;
    EXPECT_EQ(finding->block_count, 1U);
    EXPECT_EQ(finding->first_block.tensor, "late.weight");
    EXPECT_EQ(finding->first_block.first_element(), 4096U);
    rank.flip_bit(kind, "late.weight", 4096 + 123, 31);
    EXPECT_FALSE(rank.check_state()) << "each check counts anew";
    EXPECT_EQ(rank.parameter_bytes(), before);
    rank.update_with_gradients_of(2);
    EXPECT_FALSE(rank.optimizer().finding());
  }
}

TEST_P(ShardedOptimizerTest, AFlippedBitIsFoundByTheNextUpdate) {
  // late.weight has 9,100 elements, three blocks, of which rank 0 of two owns those at its beginning.
  for (const char* kind : {"weight", "moment1", "moment2"}) {
    Rank rank(0, 2, GetParam());
    rank.update_with_gradients_of(1);
    EXPECT_FALSE(rank.optimizer().finding());
    rank.update_with_gradients_of(2);
    EXPECT_FALSE(rank.optimizer().finding());
    rank.flip_bit(kind, "late.weight", 4096 + 123, 0);
    EXPECT_FALSE(rank.optimizer().finding()) << "no update has read it";
    rank.update_with_gradients_of(3);
    const std::optional<StateFinding> finding = rank.optimizer().finding();
    ASSERT_TRUE(finding) << kind;
    EXPECT_EQ(finding->block_count, 1U);
    EXPECT_EQ(finding->first_block.tensor, "late.weight");
    EXPECT_EQ(finding->first_block.kind, "");
    EXPECT_EQ(finding->first_block.first_element(), 4096U);
    EXPECT_EQ(finding->first_block.element_count(), 4096U);
    EXPECT_TRUE(rank.optimizer().finding()) << "reading resets nothing";
    rank.update_with_gradients_of(4);
    EXPECT_FALSE(rank.optimizer().finding()) << "the update before has left digests of what it wrote";
  }
}

TEST_P(ShardedOptimizerTest, AFlippedBitIsFoundByTheFirstUpdate) {
  for (const char* kind : {"weight", "moment1", "moment2"}) {
    Rank rank(0, 2, GetParam());
    rank.flip_bit(kind, "late.weight", 4096 + 123, 0);
    EXPECT_FALSE(rank.optimizer().finding()) << "no update has read it";
    rank.update_with_gradients_of(1);
    const std::optional<StateFinding> finding = rank.optimizer().finding();
    ASSERT_TRUE(finding) << kind;
    EXPECT_EQ(finding->block_count, 1U);
    EXPECT_EQ(finding->first_block.tensor, "late.weight");
    EXPECT_EQ(finding->first_block.first_element(), 4096U);
    EXPECT_FALSE(finding->frozen_verified_step);
  }
}

TEST_P(ShardedOptimizerTest, FrozenWeightsAreComparedWithWhatWasLoaded) {
  for (const int ranks : {1, 2}) {
    Rank rank(0, ranks, GetParam(), true, with_frozen(two_buckets()));
    EXPECT_FALSE(rank.check_frozen(10));
    rank.update_with_gradients_of(11);
    rank.flip_bit("weight", "frozen.weight", 4000, 3);
    rank.update_with_gradients_of(12);
    EXPECT_FALSE(rank.optimizer().finding()) << "no update reads it";
    const std::optional<StateFinding> finding = rank.check_frozen(15);
    ASSERT_TRUE(finding);
    EXPECT_EQ(finding->block_count, 1U);
    EXPECT_EQ(finding->first_block.tensor, "frozen.weight");
    EXPECT_EQ(finding->first_block.first_element(), 0U);
    EXPECT_EQ(finding->frozen_verified_step, 10U);
    EXPECT_TRUE(rank.check_state()) << "which compares all that is owned";
    rank.flip_bit("weight", "late.weight", 1, 3);
    EXPECT_EQ(rank.check_state()->block_count, 2U);
    EXPECT_EQ(rank.check_state()->first_block.tensor, "late.weight");
    rank.publish();
    EXPECT_FALSE(rank.optimizer().finding()) << "it counts as loaded";
    rank.flip_bit("weight", "frozen.weight", 4000, 3);
    EXPECT_EQ(rank.check_frozen(20)->frozen_verified_step, 0U);
  }
}

TEST_P(ShardedOptimizerTest, FrozenWeightsAreLeftAlone) {
  Rank rank(1, 2, GetParam(), true, with_frozen(two_buckets()));
  Tensors before, after;
  rank.collect("weight", before);
  for (const std::int64_t step : {1, 2}) rank.update_with_gradients_of(step);
  rank.collect("weight", after);
  EXPECT_EQ(after.at("frozen.bias"), before.at("frozen.bias"));
  EXPECT_NE(after.at("early.weight"), before.at("early.weight"));
}

// The second rank's blocks do not begin where a tensor does.
TEST_P(ShardedOptimizerTest, AFindingNamesTheBlockInsideItsTensor) {
  Rank rank(1, 2, GetParam());
  rank.update_with_gradients_of(1);
  rank.flip_bit("moment2", "late.weight", 9099, 30);
  rank.flip_bit("weight", "early.weight", 8729, 3);
  rank.update_with_gradients_of(2);
  const std::optional<StateFinding> finding = rank.optimizer().finding();
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->block_count, 2U);
  EXPECT_EQ(finding->first_block.tensor, "late.weight");
  EXPECT_EQ(finding->first_block.first_element(), 8192U);
  EXPECT_EQ(finding->first_block.element_count(), 9100U - 8192U);
}

TEST_P(ShardedOptimizerTest, AGradientThatChangesAfterItsNormIsFoundByItsUpdate) {
  Rank rank(1, 2, GetParam(), true, with_frozen(two_buckets()));
  rank.set_gradients(1);
  rank.flip_gradient_bit("late.weight", 9099, 0);
  rank.flip_gradient_bit("early.weight", 8729, 31);
  EXPECT_FALSE(rank.optimizer().finding()) << "no update has read it";
  rank.update(1, 1e-3, 0.5);
  const std::optional<StateFinding> finding = rank.optimizer().finding();
  ASSERT_TRUE(finding) << "which is the first one";
  EXPECT_TRUE(finding->is_of_gradients);
  EXPECT_EQ(finding->block_count, 2U);
  EXPECT_EQ(finding->first_block.tensor, "late.weight");
  EXPECT_EQ(finding->first_block.first_element(), 8192U);
  EXPECT_EQ(finding->first_block.element_count(), 9100U - 8192U);
  EXPECT_FALSE(finding->frozen_verified_step);
  rank.update_with_gradients_of(2);
  EXPECT_FALSE(rank.optimizer().finding()) << "the state is what the update before has written";
  rank.set_gradients(3);
  rank.flip_gradient_bit("late.weight", 9099, 0);
  rank.flip_bit("moment1", "early.weight", 8729, 3);
  rank.update(3, 1e-3, 0.5);
  ASSERT_TRUE(rank.optimizer().finding());
  EXPECT_FALSE(rank.optimizer().finding()->is_of_gradients) << "the state is older";
  EXPECT_EQ(rank.optimizer().finding()->first_block.tensor, "early.weight");
  rank.publish();
  EXPECT_FALSE(rank.optimizer().finding()) << "as a load does";
}

TEST_P(ShardedOptimizerTest, WhatIsWrittenFromOutsideIsNoDamage) {
  Rank rank(0, 1, GetParam());
  rank.update_with_gradients_of(1);
  rank.flip_bit("weight", "early.weight", 5, 12);
  rank.publish();  // as a load does
  rank.update_with_gradients_of(2);
  EXPECT_FALSE(rank.optimizer().finding());
  rank.flip_bit("moment1", "early.weight", 5, 12);
  rank.update_with_gradients_of(3);
  EXPECT_TRUE(rank.optimizer().finding());
  rank.optimizer().forget_digests();
  EXPECT_FALSE(rank.optimizer().finding());
}

TEST_P(ShardedOptimizerTest, WithoutDigestsTheUpdatesAreTheSameAndNothingIsFound) {
  Tensors weights[2];
  for (const bool checks_state : {false, true}) {
    Rank rank(0, 1, GetParam(), checks_state);
    for (const std::int64_t step : {1, 2, 3}) rank.update_with_gradients_of(step);
    rank.collect("weight", weights[checks_state ? 1 : 0]);
    rank.flip_bit("weight", "late.bias", 7, 20);
    rank.update_with_gradients_of(4);
    EXPECT_EQ(rank.optimizer().finding().has_value(), checks_state);
    rank.set_gradients(5);
    rank.flip_gradient_bit("late.bias", 7, 20);
    rank.update(5, 1e-3, 0.5);
    EXPECT_EQ(rank.optimizer().finding().has_value(), checks_state);
  }
  EXPECT_EQ(weights[0], weights[1]);
}

INSTANTIATE_TEST_SUITE_P(Precisions, ShardedOptimizerTest, testing::Values(DType::fp32, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// What a load does: masters in place, copies not yet.
TEST(ShardedOptimizer, PublishRoundsTheMasters) {
  for (const int rank : {0, 1}) Rank(rank, 2, DType::bf16).expect_rounded_copies();
}

// Memory is the point of sharding: moments (and masters) are divided by the number of ranks.
TEST(ShardedOptimizer, StateIsDividedByTheRanks) {
  const auto optimizer_bytes = [](int ranks, DType dtype, DType moments = DType::fp32) {
    MemoryPlan plan;
    const BucketPlan buckets(two_buckets(), ranks);
    const ShardedOptimizer optimizer(buckets, 0, dtype, adamw(moments), plan);
    return plan.total_bytes(MemoryClass::optimizer);
  };
  const BucketPlan whole(two_buckets(), 1);
  EXPECT_EQ(optimizer_bytes(1, DType::fp32), 2 * 4 * whole.shard_elements(0));
  EXPECT_EQ(optimizer_bytes(1, DType::bf16), 3 * 4 * whole.shard_elements(0));
  EXPECT_EQ(optimizer_bytes(1, DType::bf16, DType::bf16), (4 + 2 * 2) * whole.shard_elements(0));
  const OptimizerConfig with_average = averaged(DType::bf16);
  EXPECT_EQ(with_average.kept_bytes(), 2U + 2U + 4U);
  EXPECT_LE(optimizer_bytes(3, DType::fp32),
            optimizer_bytes(1, DType::fp32) / 3 + 2 * 4 * 2 * block_elements);
}

}  // namespace
}  // namespace holdfast::test
