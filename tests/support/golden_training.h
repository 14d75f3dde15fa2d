// Ten AdamW steps of a golden file's model, on any device, and how far they end from PyTorch's: forward,
// backward, lane reduction, clipping, schedule and update together, on one rank with one lane.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/host_transport.h"
#include "parallel/data/lane_reduction.h"
#include "parallel/local/local_communicator.h"
#include "runtime/core/exact_sum.h"
#include "runtime/device/host_access.h"
#include "runtime/optim/schedule.h"
#include "runtime/optim/sharded_optimizer.h"
#include "tests/support/golden.h"
#include "tests/support/model_rig.h"

namespace holdfast::test {

// Largest relative errors over the ten steps that are accepted. `weights`: difference / largest magnitude,
// per tensor. `update`: of what the steps changed, as a ratio of Euclidean norms over all tensors, because
// what changed is small beside the weights.
struct StepBounds {
  const char* model;
  const char* precision;
  double losses, gradient_norms, weights, update;

  friend std::ostream& operator<<(std::ostream& stream, const StepBounds& bounds) {
    return stream << bounds.model << " in " << bounds.precision;
  }
};

// What a trainer does for one rank, without data loading and voting.
class GoldenTraining {
 public:
  GoldenTraining(const Golden& golden, const std::string& precision, const RigOptions& options)
      : golden_(golden),
        config_(golden.config(precision)),
        rig_(make_model_spec(config_), {.batch = golden.batch(), .sequence_length = golden.sequence_length()},
             options),
        communicators_(make_local_communicators(1)),
        optimizer_(rig_.buckets(), 0, rig_.model().spec().dtype, config_.optimizer, plan_),
        transport_(*communicators_[0]),
        reduction_(rig_.buckets(), LaneExchange(rig_.buckets(), LaneSchedule(1, 1), 0), transport_,
                   rig_.device(), {posix_env(), 10'000}, plan_),
        access_(rig_.device(), plan_) {
    arena_ = allocate_memory(rig_.device(), plan_).value();
    access_.bind(arena_);
    reduction_.bind(arena_, rig_.gradients());
    optimizer_.bind(rig_.device(), arena_, rig_.parameters(), reduction_.reduced());
    for (const OwnedState& piece : optimizer_.state()) {
      if (piece.spec.kind != "weight") continue;
      std::vector<float> values = golden.floats("initial/" + piece.spec.tensor);
      values.resize(piece.spec.tensor_elements());  // vocabulary padding is zero
      const std::span<std::byte> target = access_.to_write(span_of(piece));
      std::memcpy(target.data(), values.data(), target.size());
      access_.flush();
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
        const std::span<const std::byte> found = access_.to_read(span_of(piece));
        std::vector<float> values(piece.spec.tensor_elements());
        std::memcpy(values.data(), found.data(), found.size());
        return values;
      }
    }
    return {};
  }
  const ModelSpec& spec() const { return rig_.model().spec(); }

 private:
  class SendBuckets final : public BucketObserver {
   public:
    explicit SendBuckets(GoldenTraining& training) : training_(training) {}
    void bucket_launched(int bucket) override {
      training_.reduction_.bucket_launched(bucket, training_.rig_.device().ticket());
    }

   private:
    GoldenTraining& training_;
  };

  static std::span<std::byte> span_of(const OwnedState& piece) {
    return {piece.data, piece.spec.tensor_elements() * sizeof(float)};
  }
  std::size_t rows() const { return static_cast<std::size_t>(golden_.batch() * golden_.sequence_length()); }
  double lane() {
    SendBuckets observer(*this);
    reduction_.begin_step();
    EXPECT_TRUE(reduction_.begin_wave(0).ok());
    const double loss_sum =
        rig_.forward_backward({.gradient_scale = 1.0F / static_cast<float>(rows()), .observer = &observer});
    reduction_.backward_launched();
    EXPECT_TRUE(reduction_.finish_wave().ok());
    reduction_.finish_step();
    rig_.device().synchronize();
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
  HostTransport transport_;
  LaneReduction reduction_;
  HostAccess access_;
};

// A key's bias adds the same to every score of a query, so the loss does not depend on it and its gradient is
// zero: AdamW scales up rounding noise there, in any implementation. Takes the keys' rows out.
inline std::vector<float> without_key_bias(const ModelSpec& spec, const std::string& name,
                                           std::vector<float> values) {
  if (!name.ends_with("attention.qkv.bias")) return values;
  const std::ptrdiff_t first = spec.attention_width(), count = spec.kv_heads * spec.head_size;
  values.erase(values.begin() + first, values.begin() + first + count);
  return values;
}

inline double square_distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return sum;
}

inline void expect_ten_steps(const StepBounds& bounds, const RigOptions& options) {
  const Golden golden(bounds.model);
  GoldenTraining training(golden, bounds.precision, options);
  double loss_error = 0.0, norm_error = 0.0;
  for (std::int64_t i = 0; i < golden.steps(); ++i) {
    const auto index = static_cast<std::size_t>(i);
    const GoldenTraining::Outcome outcome = training.step(i);
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
    EXPECT_LE(error, bounds.weights) << parameter.name;
    weight_error = std::max(weight_error, error);
    square_error += square_distance(weight, truth);
    square_change += square_distance(rows_of(golden.floats("initial/" + parameter.name)), truth);
    EXPECT_EQ(largest_magnitude(std::span(weight).subspan(truth.size())), 0.0)
        << "padding of " << parameter.name;
  }
  const double update_error = std::sqrt(square_error / square_change);
  EXPECT_LE(loss_error, bounds.losses);
  EXPECT_LE(norm_error, bounds.gradient_norms);
  EXPECT_LE(update_error, bounds.update);
  testing::Test::RecordProperty(
      "errors", fmt::format("losses {:.1e}, gradient norms {:.1e}, weights {:.1e}, update {:.1e}", loss_error,
                            norm_error, weight_error, update_error));
}

}  // namespace holdfast::test
