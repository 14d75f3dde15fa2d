// The whole model on one rank: embedding, blocks, head with cross-entropy, forward and backward as launches
// of ops on an asynchronous device. Explicit backward, no autograd.
//
// Memory: the constructor reserves everything in a MemoryPlan; bind() takes the addresses. Nothing is
// allocated later.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.h"
#include "runtime/core/memory_plan.h"
#include "runtime/model/activations.h"
#include "runtime/model/block.h"
#include "runtime/model/parameters.h"
#include "runtime/model/spec.h"

namespace holdfast {

// Memory the device can read; rows = batch * sequence_length. A negative target is not counted.
struct TokenBatch {
  const std::int32_t* inputs = nullptr;
  const std::int32_t* targets = nullptr;  // not needed for logits
  // Null, or where each token's document begins in its sequence: attention then stays inside documents.
  // Positions do not restart with a document.
  const std::int32_t* first_key = nullptr;
  BatchShapeBT shape;
};

// Told during backward, on the launching thread: every op that writes the gradients of this bucket is
// launched.
class BucketObserver {
 public:
  virtual ~BucketObserver() = default;
  virtual void bucket_launched(int bucket) = 0;
};

struct BackwardOptions {
  bool accumulate = false;             // add to the gradients of the microbatches before
  float gradient_scale = 1.0F;         // of each token's loss: 1 / tokens of the global batch
  BucketObserver* observer = nullptr;  // or null
};

class Model {
 public:
  enum class Mode { train, forward_only };

  Model(const ModelSpec& spec, BatchShapeBT largest, Mode mode, MemoryPlan& plan,
        Recompute recompute = Recompute::none);
  // `gradients` is null in forward_only mode.
  void bind(Device& device, const MemoryArena& arena, const BucketPlan& buckets, std::byte* parameters,
            float* gradients);

  // *loss_sum = sum of the tokens' losses (double, device memory) when the queue gets there.
  void forward_loss(Device& device, const TokenBatch& batch, double* loss_sum) const;
  // Buckets are announced in the order of backward_buckets().
  void forward_backward(Device& device, const TokenBatch& batch, double* loss_sum,
                        const BackwardOptions& options) const;
  // logits_V of one row (padded_vocabulary elements of the model's dtype), owned by the model, valid until
  // the next call.
  const void* forward_logits(Device& device, const TokenBatch& batch, std::int64_t row) const;

  const ModelSpec& spec() const { return spec_; }

 private:
  void forward_trunk(Device& device, const TokenBatch& batch) const;
  // Final norm's output -> losses, chunk by chunk; with options also the gradients of the head and of
  // final_NC.
  void run_head(Device& device, const TokenBatch& batch, double* loss_sum,
                const BackwardOptions* options) const;
  void backward_trunk(Device& device, const TokenBatch& batch, const BackwardOptions& options) const;
  void embedding_backward(Device& device, const TokenBatch& batch, bool accumulate) const;

  ModelSpec spec_;
  Recompute recompute_;
  ActivationMemory memory_;
  Activations activations_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  Linear head_;
  const void* token_table_ = nullptr;
  const void* position_table_ = nullptr;
  float* token_gradient_ = nullptr;
  float* position_gradient_ = nullptr;
};

}  // namespace holdfast
