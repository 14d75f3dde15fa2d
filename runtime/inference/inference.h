// InferenceModel is a trained model that only runs forward, on one device, in fp32; sampling and file
// evaluation share it. The weights are a checkpoint's fp32 master weights, whatever layout and precision they
// were trained in.
//
// For sampling it holds sequences: keys and values of their tokens stay in a cache, so that a token costs the
// forward of one row. On a CPU the logits have the bits of a forward of the whole sequence, and those of a
// sequence do not depend on the others.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

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
  std::string device = "cpu";        // or "cuda"
  int threads = 1;                   // threads of the CPU
  std::int64_t sequence_length = 0;  // longest input; 0 = the run's training.sequence_length
  std::int64_t batch = 1;            // number of sequences at once in loss_sum()
  int cached_sequences = 0;          // number of sequences that append() continues, where the memory has room
  bool averaged = false;             // takes the average of the weights (optimizer.ema) where there is one
  std::vector<Override> kernels = {};  // keys of [kernels], in place of those of the run
};

// InferenceModel holds the model and its memory. Threads: one at a time.
class InferenceModel {
 public:
  // Loads the weights of a checkpoint; the model's shape is the config stored with it. Fails with
  // ExitCode::checkpoint when weights are missing, damaged or of another shape; with config when the sequence
  // is longer than the model's learned positions, the device is not available, or an average is wanted of a run that
  // keeps none; with does_not_fit. Where memory lacks for all cached sequences, it holds half of them, or a quarter,
  // down to one.
  static Result<std::unique_ptr<InferenceModel>> load(Env& env, Checkpoint& checkpoint,
                                                      const InferenceOptions& options);

  const Config& config() const { return config_; }
  const ModelSpec& spec() const { return spec_; }
  BatchShapeBT shape() const { return shape_; }
  const Device& device() const { return *device_; }

  // Empties a sequence of the cache.
  void clear(int sequence) { lengths_[static_cast<std::size_t>(sequence)] = 0; }
  // Returns how many more tokens a sequence may have: sequence_length in all.
  std::int64_t room(int sequence) const;
  // Appends tokens to a sequence, one or more, and returns the logits of the token that follows them:
  // `vocabulary` values, valid until the next call. The error is the device's, here and below.
  Result<std::span<const float>> append(int sequence, std::span<const std::int32_t> tokens);
  // Appends a token to each of some sequences, at most sequences_at_once(), and returns the logits of each:
  // (next, vocabulary).
  struct NextToken {
    int sequence = 0;
    std::int32_t token = 0;
  };
  Result<std::span<const float>> append(std::span<const NextToken> next);
  int sequences_at_once() const;
  // Returns the sum of the losses of shape().rows() tokens; a negative target is not counted. `first_key`:
  // see TokenBatch; empty = none.
  Result<double> loss_sum(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets,
                          std::span<const std::int32_t> first_key);

 private:
  InferenceModel(Config config, const InferenceOptions& options, std::unique_ptr<Device> device);
  Result<void> check_length(const std::string& checkpoint) const;
  Result<void> allocate(Env& env);
  Result<void> plan_memory(Env& env);
  Result<void> read_weights(Checkpoint& checkpoint, const InferenceOptions& options);
  // Runs rows that continue sequences, and returns the logits of those from `first_row` on.
  Result<std::span<const float>> run(std::span<const std::int32_t> tokens,
                                     std::span<const ContinuedRows> continued, std::int64_t first_row);
  StageShape stage() const;

  Config config_;
  ModelSpec spec_;
  BatchShapeBT shape_;
  std::vector<std::int64_t> lengths_;  // tokens of each sequence of the cache
  std::vector<float> logits_;
  BucketPlan buckets_;
  MemoryPlan plan_;
  MemoryPlan::Slot parameters_slot_, loss_sum_slot_;
  MemoryArena arena_;
  std::unique_ptr<HostAccess> host_access_;
  std::unique_ptr<Model> model_;
  float* parameters_ = nullptr;
  std::unique_ptr<TokenStaging> tokens_;
  double* loss_sum_ = nullptr;
  std::unique_ptr<Device> device_;  // last: its queue drains while the memory that it works on is still there
};

}  // namespace holdfast::inference
