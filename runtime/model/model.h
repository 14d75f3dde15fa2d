// The model on one rank: embedding, blocks, head with cross-entropy, forward and backward as launches of ops
// on an asynchronous device. The backward is explicit, without autograd.
//
// A rank of a pipeline has a stage: some neighbouring layers. The stage's forward ends with output(), the
// next one's starts with its input(); a backward ends with input_gradient() and the previous one's starts
// with its output_gradient(). The executor of the stages moves these between the ranks.
//
// With tensor lanes a rank has some slices of everything that is split; a rank that shares the work of a
// microbatch with others joins their group, and input(), output() and their gradients are of the rank's own
// rows.
//
// Memory: the constructor reserves everything in a MemoryPlan; bind() takes the addresses. Nothing is
// allocated later.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "parallel/data/buckets.h"
#include "runtime/core/memory_plan.h"
#include "runtime/device/device.h"
#include "runtime/model/activations.h"
#include "runtime/model/block.h"
#include "runtime/model/parameters.h"
#include "runtime/model/spec.h"

namespace holdfast::model {

// Tokens of a microbatch in memory that the device can read; rows = batch * sequence_length. A negative
// target is not counted.
struct TokenBatch {
  const std::int32_t* inputs = nullptr;
  const std::int32_t* targets = nullptr;  // not needed for logits
  // Index at which each token's document begins in its sequence, or null; with it, attention stays inside
  // documents. Positions do not restart with a document.
  const std::int32_t* first_key = nullptr;
  BatchShapeBT shape;
  // Which sequences of the cache the rows continue (StageShape::cached_sequences), and from where on; empty:
  // every sequence begins with its first row.
  std::span<const ContinuedRows> continued = {};
};

// Receives notifications about buckets during backward, on the launching thread.
class BucketObserver {
 public:
  virtual ~BucketObserver() = default;
  // Called before an op is launched that writes the gradients of this bucket; returns when its memory is
  // free.
  virtual Result<void> wait_for_slot(int /*bucket*/) { return {}; }
  // Called when every op that writes the bucket's gradients is launched.
  virtual void bucket_launched(int bucket) = 0;
};

struct BackwardOptions {
  BackwardPart part = BackwardPart::whole;
  bool accumulate = false;             // add to the gradients of the microbatches before
  float gradient_scale = 1.0F;         // factor of each token's loss: 1 / tokens of the global batch
  BucketObserver* observer = nullptr;  // or null
  bool completes_lane = true;          // the last microbatch of its lane
  // True if no other microbatch was launched since this one's forward: memory that the blocks share then
  // still holds the last block's activations.
  bool follows_forward = true;
  BackwardPass pass() const { return {.part = part, .accumulate = accumulate}; }
};

class Model {
 public:
  enum class Mode { train, forward_only };

  Model(const ModelSpec& spec, BatchShapeBT largest, Mode mode, MemoryPlan& plan,
        Recompute recompute = Recompute::none);  // the whole model with all slices, one microbatch at a time
  Model(const ModelSpec& spec, BatchShapeBT largest, Mode mode, MemoryPlan& plan, Recompute recompute,
        const StageShape& stage);
  // Takes the addresses of everything that was reserved. `gradients` is null in forward_only mode.
  void bind(Device& device, const MemoryArena& arena, const BucketPlan& buckets, std::byte* parameters,
            float* gradients);
  // Joins the tensor group of a share with peers, before anything runs; the group outlives the model. Until
  // then no message is sent, as when kernels are only planned.
  void join(TensorGroup& group);
  // Returns when the parameters of a bucket, and of those before it in forward order, are whole for what is
  // launched from then on (ParameterGather::wait_for). The error is that of whoever brings them.
  using ParameterWait = std::function<Result<void>(int bucket)>;
  // From now on forward() waits for the parameters of the embedding and of each half layer before it launches
  // what reads them. Without this call they are there, as the head's must be before a backward or
  // forward_loss(), which wait for nothing.
  void set_parameter_wait(ParameterWait wait) { parameter_wait_ = std::move(wait); }

  // Calls `change` in every forward of the stage with the embedding, when what writes input() is launched,
  // and before anything is launched that reads it: fault points change it there.
  void set_after_embedding(std::function<void(int microbatch)> change) {
    after_embedding_ = std::move(change);
  }

  // Launches the forward of a microbatch. Microbatches are numbered in the order of their forwards; their
  // activations use the entries of a ring of StageShape::microbatches_in_flight in turn. All functions that
  // launch fail with the error of the tensor group.
  Result<void> forward(Device& device, const TokenBatch& batch, int microbatch) const;
  // Launches the backward of a microbatch; the last stage's starts with the loss. It ends at the lowest layer
  // that is trained; where that is on a later stage, input_gradient() has no content. Buckets are announced in
  // the order of backward_buckets(), frozen ones never. *loss_sum = sum of the tokens' losses (double, device
  // memory) when the queue gets there; stages without the head leave it unchanged. A stage with room for
  // pending weight gradients runs it in two parts, else it is whole. `inputs` computes the loss and
  // input_gradient() and writes no gradient of a weight; `weights` writes and announces them all. Each part
  // goes through the microbatches in order.
  Result<void> backward(Device& device, const TokenBatch& batch, int microbatch, double* loss_sum,
                        const BackwardOptions& options) const;
  // Returns a boundary tensor, (own rows, width) in the model's dtype. input(), output_gradient() and
  // input_gradient() have one buffer more than microbatches are in flight.
  std::span<std::byte> input(int microbatch, BatchShapeBT shape) const;
  std::span<std::byte> output(int microbatch, BatchShapeBT shape) const;
  std::span<std::byte> output_gradient(int microbatch, BatchShapeBT shape) const;
  // Returns the gradient of input(); a whole backward works in place, in the memory of output_gradient().
  std::span<std::byte> input_gradient(int microbatch, BatchShapeBT shape) const;

  // Runs forward() without a backward, with the loss where the head is.
  Result<void> forward_loss(Device& device, const TokenBatch& batch, int microbatch, double* loss_sum) const;
  Result<void> forward_loss(Device& device, const TokenBatch& batch, double* loss_sum) const {
    return forward_loss(device, batch, 0, loss_sum);
  }
  Result<void> forward_backward(Device& device, const TokenBatch& batch, double* loss_sum,
                                const BackwardOptions& options) const;
  // Returns the logits of `rows` rows from `first_row` on, at most head_rows() of them, owned by the model, valid
  // until the next call: (slices, rows, padded_vocabulary of a slice) elements of the model's dtype. Requires a
  // model with all slices.
  const void* forward_logits(Device& device, const TokenBatch& batch, std::int64_t first_row,
                             std::int64_t rows = 1) const;
  std::int64_t head_rows() const { return memory_.head_rows(); }

  const ModelSpec& spec() const { return spec_; }
  // Returns the parts that backward() is called with, in order: the whole, or one call for either part.
  std::span<const BackwardPart> backward_parts() const;
  int microbatches_in_flight() const { return stage_.microbatches_in_flight; }
  bool has_head() const { return stage_.part.has_head; }

 private:
  class BucketCounter;

  void bind_adapters(const ParameterTable& table, std::int64_t layer, AdapterBinding& binding,
                     Block& block) const;
  void bind_ends(const ParameterTable& table);
  void bind_buckets(const BucketPlan& buckets);
  bool trains_head() const { return head_.slices.front().weight_gradient != nullptr; }
  bool trains_embedding() const { return token_table_.slices.front().weight_gradient != nullptr; }
  Result<void> wait_for_parameters(int bucket) const;
  // Returns the number of the stage's block `index` among the layers of the whole model.
  std::int64_t layer_of(std::size_t index) const {
    return stage_.part.first_layer + static_cast<std::int64_t>(index);
  }
  // Returns the input (index 0) or an output (index i + 1: of the stage's block i) of a microbatch.
  void* residual(int microbatch, std::size_t index) const;
  BlockActivations block_activations(int microbatch, std::size_t index) const;
  void* dresidual(int microbatch, std::size_t index) const;  // the gradient of residual()
  const MicrobatchGradients& gradients(int microbatch) const;
  BlockGradients block_gradients(int microbatch, std::size_t index) const;
  std::size_t boundary_bytes(BatchShapeBT shape) const;
  BlockRun run_of(Device& device, const TokenBatch& batch) const;
  TensorGroup& group() const { return joined_ == nullptr ? *alone_ : *joined_; }
  Result<void> embed(Device& device, const TokenBatch& batch, int microbatch) const;
  Result<void> run_final_norm(Device& device, const TokenBatch& batch, int microbatch) const;
  // Computes the losses from the final norm's output, chunk by chunk; with options also what they ask for:
  // the gradient of final_NC and those of the head.
  Result<void> run_head(Device& device, const TokenBatch& batch, int microbatch, double* loss_sum,
                        const BackwardOptions* options) const;
  struct HeadChunk {
    std::int64_t first_row = 0, rows = 0;
    const void* x_NC = nullptr;
    void* logits = nullptr;
  };
  HeadChunk head_chunk(int microbatch, std::int64_t first_row, std::int64_t rows) const;
  // Computes the losses of a chunk; with options its logits are replaced by their gradients.
  Result<void> cross_entropy(Device& device, const TokenBatch& batch, HeadChunk chunk,
                             const BackwardOptions* options) const;
  Result<void> cross_entropy_of_slices(Device& device, const TokenBatch& batch, HeadChunk chunk,
                                       const BackwardOptions* options) const;
  void head_input_gradient(Device& device, const TokenBatch& batch, HeadChunk chunk) const;
  Result<void> head_backward(Device& device, const TokenBatch& batch, int microbatch, double* loss_sum,
                             const BackwardOptions& options, BucketCounter& bucket) const;
  Result<void> block_backward(Device& device, const TokenBatch& batch, int microbatch, std::size_t index,
                              const BackwardOptions& options, BucketCounter& bucket) const;
  Recompute recompute_before(std::size_t index, const BackwardOptions& options) const;
  Result<void> embedding_backward(Device& device, const TokenBatch& batch, int microbatch,
                                  bool accumulate) const;
  // Completes the gradients of a norm or of the adapters of a linear layer, once the lane is complete.
  template <typename Layer>
  Result<void> complete(Device& device, const Layer& layer, const BackwardOptions& options) const;
  // Range of the real tokens in a slice of the vocabulary.
  struct TokenRange {
    std::int64_t first = 0, count = 0;
  };
  TokenRange tokens_of_slice(std::size_t index) const;

  ModelSpec spec_, slice_;
  Recompute recompute_;
  StageShape stage_;
  std::size_t lowest_block_;  // index of the stage's first block that has a backward
  ActivationMemory memory_;
  Activations activations_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  ColumnLinear head_;
  ColumnLinear token_table_;  // rows of the vocabulary as outputs
  const void* position_table_ = nullptr;
  float* position_gradient_ = nullptr;
  std::unique_ptr<TensorGroup> alone_;
  TensorGroup* joined_ = nullptr;
  // Indices of the trained buckets of parameters that a forward reads: the last of the embedding's, and those
  // of each block, which a backward writes; -1 where all is frozen.
  struct HalfBuckets {
    int attention = -1, feed_forward = -1;
  };
  int embedding_bucket_ = -1;
  std::vector<HalfBuckets> block_buckets_;
  ParameterWait parameter_wait_;
  std::function<void(int microbatch)> after_embedding_;
};

}  // namespace holdfast::model
