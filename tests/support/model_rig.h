// A model on a device, the CPU's unless it is given another, with the memory, buckets and tokens it needs, as
// the only rank of a run has them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/data/buckets.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/random.h"
#include "runtime/device/device.h"
#include "runtime/device/host_access.h"
#include "runtime/model/model.h"

namespace holdfast::test {

struct RigOptions {
  Model::Mode mode = Model::Mode::train;
  int threads = 2;
  std::function<void(OpId)> observer = {};
  Recompute recompute = Recompute::none;
  bool split_backward = false;
  int cached_sequences = 0;
  std::vector<KernelPreference> kernels = {};
  // Of another device than the CPU's, which `threads`, `observer` and `kernels` describe.
  std::function<std::unique_ptr<Device>()> make_device = {};
};

class ModelRig {
 public:
  ModelRig(const ModelSpec& spec, BatchShapeBT shape, const RigOptions& options = {})
      : shape_(shape),
        buckets_(backward_buckets(spec), 1),
        device_(options.make_device ? options.make_device()
                                    : make_cpu_device({.threads = options.threads,
                                                       .kernels = options.kernels,
                                                       .observer = options.observer})),
        access_(*device_, plan_),
        model_(spec, shape, options.mode, plan_, options.recompute, stage_of(spec, options)) {
    const auto rows = static_cast<std::uint64_t>(shape.rows());
    parameters_ = plan_.reserve("parameters", MemoryClass::weights,
                                buckets_.parameter_elements() * bytes_of(spec.dtype));
    if (options.mode == Model::Mode::train) {
      gradients_ =
          plan_.reserve("gradients", MemoryClass::gradients, buckets_.gradient_elements() * sizeof(float));
    }
    constexpr MemoryKind seen = MemoryKind::host_visible;
    inputs_ = plan_.reserve("inputs", MemoryClass::data, rows * sizeof(std::int32_t), seen);
    targets_ = plan_.reserve("targets", MemoryClass::data, rows * sizeof(std::int32_t), seen);
    loss_sum_ = plan_.reserve("loss_sum", MemoryClass::data, sizeof(double), seen);
    arena_ = allocate_memory(*device_, plan_).value();
    access_.bind(arena_);
    model_.bind(*device_, arena_, buckets_, parameters(), gradients());
  }

  const BucketPlan& buckets() const { return buckets_; }
  Device& device() { return *device_; }
  const Model& model() const { return model_; }
  void set_parameter_wait(Model::ParameterWait wait) { model_.set_parameter_wait(std::move(wait)); }
  std::byte* parameters() const { return arena_.at<std::byte>(parameters_); }
  float* gradients() const { return gradients_.bytes == 0 ? nullptr : arena_.at<float>(gradients_); }
  double* loss_sum() const { return arena_.at<double>(loss_sum_); }

  TokenBatch set_tokens(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets) {
    std::copy(inputs.begin(), inputs.end(), arena_.at<std::int32_t>(inputs_));
    std::copy(targets.begin(), targets.end(), arena_.at<std::int32_t>(targets_));
    return tokens();
  }
  TokenBatch tokens() const {
    return {.inputs = arena_.at<std::int32_t>(inputs_),
            .targets = arena_.at<std::int32_t>(targets_),
            .shape = shape_};
  }

  // weights_of(name): the tensor's values; vocabulary padding may be left out.
  void set_weights(const std::function<std::vector<float>(const ParameterSpec&)>& weights_of) {
    for (const ParameterSpec& parameter : parameter_specs(model_.spec())) {
      const std::vector<float> values = weights_of(parameter);
      const BucketTensor& tensor = *tensors_of(parameter.name).front();
      if (!values.empty()) set_elements(tensor.parameter_offset, values);
    }
  }
  void set_initial_weights(std::uint64_t seed) {
    set_weights([seed](const ParameterSpec& parameter) {
      std::vector<float> values(parameter.elements());
      initial_values(parameter, seed, 0, values);
      return values;
    });
  }

  std::vector<float> weight(const std::string& name) {
    const BucketTensor& tensor = *tensors_of(name).front();
    return elements(parameters(), tensor.parameter_offset, tensor.elements());
  }
  // A tied weight's two gradients added.
  std::vector<float> gradient(const std::string& name) {
    std::vector<float> sum;
    for (const BucketTensor* tensor : tensors_of(name)) {
      const std::vector<float> part = gradient_elements(tensor->gradient_offset, tensor->elements());
      sum.resize(part.size());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    return sum;
  }
  std::vector<float> all_gradients() { return gradient_elements(0, buckets_.gradient_elements()); }

  double forward_loss() {
    EXPECT_TRUE(model_.forward_loss(*device_, tokens(), loss_sum()).ok());
    device_->synchronize();
    return *loss_sum();
  }
  double forward_backward(const BackwardOptions& options) {
    EXPECT_TRUE(model_.forward_backward(*device_, tokens(), loss_sum(), options).ok());
    device_->synchronize();
    return *loss_sum();
  }
  // Logits of one row, padding included.
  std::vector<float> forward_logits(std::int64_t row) {
    const void* logits = model_.forward_logits(*device_, tokens(), row);
    device_->synchronize();
    return elements(static_cast<const std::byte*>(logits), 0,
                    static_cast<std::uint64_t>(model_.spec().padded_vocabulary));
  }
  // Those of some rows that continue sequences of the cache, one after another. The tokens replace those of before.
  std::vector<float> continued_logits(std::span<const std::int32_t> tokens,
                                      std::span<const ContinuedRows> continued, std::int64_t first_row,
                                      std::int64_t count) {
    std::copy(tokens.begin(), tokens.end(), arena_.at<std::int32_t>(inputs_));
    const TokenBatch batch{.inputs = arena_.at<std::int32_t>(inputs_),
                           .shape = {.batch = 1, .sequence_length = std::ssize(tokens)},
                           .continued = continued};
    const void* logits = model_.forward_logits(*device_, batch, first_row, count);
    device_->synchronize();
    return elements(static_cast<const std::byte*>(logits), 0,
                    static_cast<std::uint64_t>(count * model_.spec().padded_vocabulary));
  }

 private:
  static StageShape stage_of(const ModelSpec& spec, const RigOptions& options) {
    StageShape stage = whole_stage(spec);
    stage.weight_gradients_pending = options.split_backward ? 1 : 0;
    stage.cached_sequences = options.cached_sequences;
    return stage;
  }
  // The real tensor first, then its shadow if the weight is tied.
  std::vector<const BucketTensor*> tensors_of(const std::string& name) const {
    std::vector<const BucketTensor*> found;
    for (const bool shadow : {false, true}) {
      for (const Bucket& bucket : buckets_.buckets()) {
        if ((bucket.tied_to >= 0) != shadow) continue;
        for (const BucketTensor& tensor : bucket.tensors) {
          if (tensor.name == name) found.push_back(&tensor);
        }
      }
    }
    HF_CHECK(!found.empty(), "no tensor {}", name);
    return found;
  }
  std::size_t element_bytes() const { return bytes_of(model_.spec().dtype); }
  void set_elements(std::uint64_t first, std::span<const float> values) {
    const std::span<std::byte> target =
        access_.to_write({parameters() + first * element_bytes(), values.size() * element_bytes()});
    if (model_.spec().dtype == DType::bf16) {
      std::ranges::transform(values, reinterpret_cast<BFloat16*>(target.data()), to_bfloat16);
    } else {
      std::memcpy(target.data(), values.data(), target.size());
    }
    access_.flush();
  }
  // Of the model's dtype.
  std::vector<float> elements(const std::byte* source, std::uint64_t first, std::uint64_t count) {
    const std::byte* found =
        access_.to_read({source + first * element_bytes(), count * element_bytes()}).data();
    std::vector<float> values(count);
    if (model_.spec().dtype == DType::bf16) {
      const auto* rounded = reinterpret_cast<const BFloat16*>(found);
      std::transform(rounded, rounded + count, values.begin(), to_float);
    } else {
      std::memcpy(values.data(), found, count * sizeof(float));
    }
    return values;
  }
  std::vector<float> gradient_elements(std::uint64_t first, std::uint64_t count) {
    const std::span<const std::byte> found =
        access_.to_read(std::as_bytes(std::span(gradients() + first, count)));
    std::vector<float> values(count);
    std::memcpy(values.data(), found.data(), found.size());
    return values;
  }

  BatchShapeBT shape_;
  MemoryPlan plan_;
  MemoryArena arena_;  // outlives the device, whose queue may still hold ops
  BucketPlan buckets_;
  std::unique_ptr<Device> device_;
  HostAccess access_;
  Model model_;
  MemoryPlan::Slot parameters_, gradients_, inputs_, targets_, loss_sum_;
};

// Tokens below `vocabulary`, as a pure function of the seed.
inline std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocabulary,
                                               std::uint64_t seed) {
  const RandomStream stream(seed, 7);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    const double share = stream.uniform(static_cast<std::uint64_t>(i));
    tokens.push_back(static_cast<std::int32_t>(share * static_cast<double>(vocabulary)));
  }
  return tokens;
}

}  // namespace holdfast::test
