// Ten AdamW steps of tiny models against PyTorch (tests/golden/make_goldens.py): forward, backward, lane
// reduction, clipping, schedule and update together, on one rank with one lane.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "parallel/host_exchange.h"
#include "parallel/lane_reduction.h"
#include "parallel/local/local_communicator.h"
#include "runtime/core/exact_sum.h"
#include "runtime/optim/schedule.h"
#include "runtime/optim/sharded_optimizer.h"
#include "tests/support/golden.h"
#include "tests/support/model_rig.h"

namespace holdfast::test {
namespace {

// Largest relative errors over the ten steps. `weights`: difference / largest magnitude, per tensor.
// `update`: of what the steps changed, as a ratio of Euclidean norms over all tensors, because what changed
// is small beside the weights. fp32: rounding the weights themselves costs 2e-5 of the update. Where a
// gradient is about as small as the rounding of the sum it comes from, AdamW's ratio of moments is rounding
// too; these few elements decide `weights`. bf16: activations and working weights are rounded to 8 bits, the
// master weights are not. Steps smaller than a working weight's spacing do not show in the loss; PyTorch with
// bf16 working weights is as far from its float64.
struct Bounds {
  const char* model;
  const char* precision;
  double losses, gradient_norms, weights, update;

  friend std::ostream& operator<<(std::ostream& stream, const Bounds& bounds) {
    return stream << bounds.model << " in " << bounds.precision;
  }
};
constexpr Bounds all_bounds[] = {
    {"gpt2", "fp32", 1e-5, 1e-5, 1e-5, 1e-4},       {"llama", "fp32", 1e-5, 1e-5, 1e-5, 1e-4},
    {"llama_tied", "fp32", 1e-5, 1e-5, 1e-5, 1e-4}, {"gpt2", "bf16", 7e-3, 1.5e-2, 4e-3, 4e-2},
    {"llama", "bf16", 1e-3, 5e-3, 3e-3, 5e-2},      {"llama_tied", "bf16", 3e-3, 8e-3, 1e-3, 4e-2},
};

// What a trainer does for one rank, without data loading and voting.
class Training {
 public:
  Training(const Golden& golden, const std::string& precision)
      : golden_(golden),
        config_(golden.config(precision)),
        rig_(make_model_spec(config_),
             {.batch = golden.batch(), .sequence_length = golden.sequence_length()}),
        communicators_(make_local_communicators(1)),
        optimizer_(rig_.buckets(), 0, rig_.model().spec().dtype, config_.optimizer, plan_),
        exchange_(*communicators_[0]),
        reduction_(rig_.buckets(), LaneSchedule(1, 1), exchange_, rig_.device(), {posix_env(), 10'000},
                   plan_) {
    arena_ = MemoryArena::allocate(plan_).value();
    reduction_.bind(arena_, rig_.gradients());
    optimizer_.bind(rig_.device(), arena_, rig_.parameters(), reduction_.reduced());
    for (const OwnedState& piece : optimizer_.state()) {
      if (piece.spec.kind != "weight") continue;
      std::vector<float> values = golden.floats("initial/" + piece.spec.tensor);
      values.resize(piece.spec.tensor_elements());  // vocabulary padding is zero
      std::copy(values.begin(), values.end(), piece.data);
    }
    optimizer_.launch_publish(rig_.device());
  }

  struct Outcome {
    double loss = 0.0, gradient_norm = 0.0;
  };
  Outcome step(std::int64_t index) {
    rig_.set_tokens(golden_.tokens("inputs", index), golden_.tokens("targets", index));
    Outcome outcome = {.loss = lane() / static_cast<double>(rows()), .gradient_norm = gradient_norm()};
    const double clip = config_.optimizer.gradient_clip;
    optimizer_.launch_update(
        rig_.device(),
        {.step = index + 1,
         .learning_rate = learning_rate_at(config_.optimizer, index + 1, config_.training.steps),
         .gradient_scale = outcome.gradient_norm > clip ? clip / outcome.gradient_norm : 1.0});
    rig_.device().synchronize();
    return outcome;
  }

  // The fp32 master.
  std::vector<float> weight(const std::string& name) {
    for (const OwnedState& piece : optimizer_.state()) {
      if (piece.spec.kind == "weight" && piece.spec.tensor == name) {
        return {piece.data, piece.data + piece.spec.tensor_elements()};
      }
    }
    return {};
  }
  const ModelSpec& spec() const { return rig_.model().spec(); }

 private:
  class SendBuckets final : public BucketObserver {
   public:
    explicit SendBuckets(Training& training) : training_(training) {}
    void bucket_launched(int bucket) override {
      training_.reduction_.bucket_launched(bucket, training_.rig_.device().ticket());
    }

   private:
    Training& training_;
  };

  std::size_t rows() const { return static_cast<std::size_t>(golden_.batch() * golden_.sequence_length()); }
  double lane() {
    SendBuckets observer(*this);
    reduction_.begin_step();
    EXPECT_TRUE(reduction_.begin_wave(0).ok());
    const double loss_sum =
        rig_.forward_backward({.gradient_scale = 1.0F / static_cast<float>(rows()), .observer = &observer});
    reduction_.backward_launched();
    EXPECT_TRUE(reduction_.finish_wave().ok());
    EXPECT_TRUE(reduction_.finish_step().ok());
    return loss_sum;
  }
  double gradient_norm() {
    ExactSum sum;
    for (const double block : reduction_.square_sums()) sum.add(block);
    return std::sqrt(sum.value());
  }

  const Golden& golden_;
  Config config_;
  MemoryPlan plan_;
  MemoryArena arena_;
  ModelRig rig_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  ShardedOptimizer optimizer_;
  HostExchange exchange_;
  LaneReduction reduction_;
};

// A key's bias adds the same to every score of a query, so the loss does not depend on it and its gradient is
// zero: AdamW scales up rounding noise there, in any implementation. Takes the keys' rows out.
std::vector<float> without_key_bias(const ModelSpec& spec, const std::string& name,
                                    std::vector<float> values) {
  if (!name.ends_with("attention.qkv.bias")) return values;
  const std::ptrdiff_t first = spec.attention_width(), count = spec.kv_heads * spec.head_size;
  values.erase(values.begin() + first, values.begin() + first + count);
  return values;
}

double square_distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return sum;
}

class GoldenSteps : public testing::TestWithParam<Bounds> {};

TEST_P(GoldenSteps, TenStepsOfAdamW) {
  const Golden golden(GetParam().model);
  Training training(golden, GetParam().precision);
  double loss_error = 0.0, norm_error = 0.0;
  for (std::int64_t i = 0; i < golden.steps(); ++i) {
    const auto index = static_cast<std::size_t>(i);
    const Training::Outcome outcome = training.step(i);
    loss_error = std::max(loss_error, std::abs(outcome.loss / golden.losses()[index] - 1.0));
    norm_error = std::max(norm_error, std::abs(outcome.gradient_norm / golden.gradient_norms()[index] - 1.0));
  }
  double weight_error = 0.0, square_error = 0.0, square_change = 0.0;
  for (const ParameterSpec& parameter : parameter_specs(training.spec())) {
    const auto rows_of = [&](std::vector<float> values) {
      return without_key_bias(training.spec(), parameter.name, std::move(values));
    };
    const std::vector<float> weight = rows_of(training.weight(parameter.name));
    const std::vector<float> truth = rows_of(golden.floats("final/" + parameter.name));
    const double error = relative_error(weight, truth);
    EXPECT_LE(error, GetParam().weights) << parameter.name;
    weight_error = std::max(weight_error, error);
    square_error += square_distance(weight, truth);
    square_change += square_distance(rows_of(golden.floats("initial/" + parameter.name)), truth);
    EXPECT_EQ(largest_magnitude(std::span(weight).subspan(truth.size())), 0.0)
        << "padding of " << parameter.name;
  }
  const double update_error = std::sqrt(square_error / square_change);
  EXPECT_LE(loss_error, GetParam().losses);
  EXPECT_LE(norm_error, GetParam().gradient_norms);
  EXPECT_LE(update_error, GetParam().update);
  RecordProperty("errors", fmt::format("losses {:.1e}, gradient norms {:.1e}, weights {:.1e}, update {:.1e}",
                                       loss_error, norm_error, weight_error, update_error));
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenSteps, testing::ValuesIn(all_bounds), [](const auto& test) {
  return fmt::format("{}_{}", test.param.model, test.param.precision);
});

}  // namespace
}  // namespace holdfast::test
