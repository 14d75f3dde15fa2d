// InferenceModel is a trained model that only runs forward, on one device, in fp32; sampling and file
// evaluation share it. The weights are a checkpoint's fp32 master weights, whatever layout and precision they
// were trained in.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "checkpoint/store.h"
#include "runtime/config/config.h"
#include "runtime/config/loader.h"
#include "runtime/core/memory_plan.h"
#include "runtime/device/device.h"
#include "runtime/device/host_access.h"
#include "runtime/model/model.h"
#include "runtime/os/env.h"
#include "runtime/train/token_staging.h"

namespace holdfast::inference {

struct InferenceOptions {
  std::string device = "cpu";          // or "cuda"
  int threads = 1;                     // threads of the CPU
  std::int64_t sequence_length = 0;    // longest input; 0 = the run's training.sequence_length
  std::int64_t batch = 1;              // number of sequences at once
  std::vector<Override> kernels = {};  // keys of [kernels], in place of those of the run
};

// InferenceModel holds the model and its memory. Threads: one at a time.
class InferenceModel {
 public:
  // Loads the weights of a checkpoint; the model's shape is the config stored with it. Fails with
  // ExitCode::checkpoint when weights are missing, damaged or of another shape; with config when the sequence
  // is longer than the model's learned positions, or the device is not available; with does_not_fit.
  static Result<std::unique_ptr<InferenceModel>> load(Env& env, Checkpoint& checkpoint,
                                                      const InferenceOptions& options);

  const Config& config() const { return config_; }
  const ModelSpec& spec() const { return spec_; }
  BatchShapeBT shape() const { return shape_; }
  const Device& device() const { return *device_; }

  // Returns the logits of the token that follows `tokens` (1 to sequence_length of them): `vocabulary`
  // values, valid until the next call. The error is the device's, here and below.
  Result<std::span<const float>> next_logits(std::span<const std::int32_t> tokens);
  // Returns the sum of the losses of shape().rows() tokens; a negative target is not counted. `first_key`:
  // see TokenBatch; empty = none.
  Result<double> loss_sum(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets,
                          std::span<const std::int32_t> first_key);

 private:
  InferenceModel(Config config, const InferenceOptions& options, std::unique_ptr<Device> device);
  Result<void> check_length(const std::string& checkpoint) const;
  Result<void> allocate(Env& env);
  Result<void> read_weights(Checkpoint& checkpoint, int threads);

  Config config_;
  ModelSpec spec_;
  BatchShapeBT shape_;
  BucketPlan buckets_;
  MemoryPlan plan_;
  MemoryArena arena_;
  std::unique_ptr<HostAccess> host_access_;
  std::unique_ptr<Model> model_;
  float* parameters_ = nullptr;
  std::unique_ptr<TokenStaging> tokens_;
  double* loss_sum_ = nullptr;
  std::unique_ptr<Device> device_;  // last: its queue drains while the memory that it works on is still there
};

}  // namespace holdfast::inference
