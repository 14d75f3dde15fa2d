#include "runtime/model/model.h"

#include <algorithm>

#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"

namespace holdfast {
namespace {

// Row `row` of a matrix of `width` columns whose element type is known only at run time.
std::byte* row_of(void* matrix, std::int64_t row, std::int64_t width, DType dtype) {
  return static_cast<std::byte*>(matrix) + static_cast<std::size_t>(row * width) * bytes_of(dtype);
}

std::size_t boundary_bytes(const ModelSpec& spec, BatchShapeBT shape) {
  return static_cast<std::size_t>(shape.rows() * spec.width) * bytes_of(spec.dtype);
}

// Counts the buckets of one backward pass; the order is backward_buckets()'s.
class BucketCounter {
 public:
  explicit BucketCounter(BucketObserver* observer) : observer_(observer) {}
  void next() {
    if (observer_ != nullptr) observer_->bucket_launched(bucket_);
    ++bucket_;
  }

 private:
  BucketObserver* observer_;
  int bucket_ = 0;
};

}  // namespace

Model::Model(const ModelSpec& spec, BatchShapeBT largest, Mode mode, MemoryPlan& plan, Recompute recompute)
    : Model(spec, largest, mode, plan, recompute, StageShape{.part = whole_model(spec)}) {}

Model::Model(const ModelSpec& spec, BatchShapeBT largest, Mode mode, MemoryPlan& plan, Recompute recompute,
             const StageShape& stage)
    : spec_(spec),
      recompute_(recompute),
      stage_(stage),
      memory_(spec, largest, mode == Mode::train, recompute, stage, plan) {
  HF_CHECK(0 <= stage.part.first_layer && stage.part.first_layer <= stage.part.end_layer &&
           stage.part.end_layer <= spec.layers && stage.microbatches_in_flight >= 1);
}

void Model::bind(Device& device, const MemoryArena& arena, const BucketPlan& buckets, std::byte* parameters,
                 float* gradients) {
  activations_ = memory_.bind(device, arena);
  const ParameterTable table(spec_, buckets, parameters, gradients);
  for (std::int64_t layer = stage_.part.first_layer; layer < stage_.part.end_layer; ++layer) {
    const std::string name = fmt::format("layers.{}.", layer);
    blocks_.push_back({.attention_norm = table.norm(name + "attention_norm"),
                       .feed_forward_norm = table.norm(name + "feed_forward_norm"),
                       .qkv = table.linear(name + "attention.qkv"),
                       .output = table.linear(name + "attention.output"),
                       .up = table.linear(name + "feed_forward.up"),
                       .down = table.linear(name + "feed_forward.down")});
  }
  bind_ends(table);
}

void Model::bind_ends(const ParameterTable& table) {
  if (has_head()) {
    final_norm_ = table.norm("final_norm");
    head_ = table.head();
  }
  if (!stage_.part.has_embedding) return;
  token_table_ = table.parameter("embedding.token.weight");
  token_gradient_ = table.gradient("embedding.token.weight");
  if (spec_.positions == 0) return;
  position_table_ = table.parameter("embedding.position.weight");
  position_gradient_ = table.gradient("embedding.position.weight");
}

void* Model::residual(int microbatch, std::size_t index) const {
  const auto of = [microbatch](const auto& ring) {
    return static_cast<std::size_t>(microbatch) % ring.size();
  };
  if (index == 0) return activations_.input_NC[of(activations_.input_NC)];
  return activations_.microbatches[of(activations_.microbatches)].residual_NC[index - 1];
}

BlockActivations Model::block_activations(int microbatch, std::size_t index) const {
  const std::size_t place = static_cast<std::size_t>(microbatch) % activations_.microbatches.size();
  BlockActivations activations = activations_.microbatches[place].blocks[index];
  activations.x_NC = residual(microbatch, index);
  return activations;
}

std::span<std::byte> Model::input(int microbatch, BatchShapeBT shape) const {
  return {static_cast<std::byte*>(residual(microbatch, 0)), boundary_bytes(spec_, shape)};
}

std::span<std::byte> Model::output(int microbatch, BatchShapeBT shape) const {
  return {static_cast<std::byte*>(residual(microbatch, blocks_.size())), boundary_bytes(spec_, shape)};
}

std::span<std::byte> Model::output_gradient(int microbatch, BatchShapeBT shape) const {
  void* const d_NC = activations_.d_NC[static_cast<std::size_t>(microbatch) % activations_.d_NC.size()];
  return {static_cast<std::byte*>(d_NC), boundary_bytes(spec_, shape)};
}

void Model::embed(Device& device, const TokenBatch& batch, int microbatch) const {
  device.launch(EmbeddingForward{.tokens = batch.inputs,
                                 .table = token_table_,
                                 .positions = position_table_,
                                 .x = residual(microbatch, 0),
                                 .rows = batch.shape.rows(),
                                 .width = spec_.width,
                                 .sequence_length = batch.shape.sequence_length,
                                 .dtype = spec_.dtype});
}

void Model::forward(Device& device, const TokenBatch& batch, int microbatch) const {
  if (stage_.part.has_embedding) embed(device, batch, microbatch);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    block_forward(device, spec_, blocks_[i], block_activations(microbatch, i), activations_.scratch,
                  residual(microbatch, i + 1), {batch.shape, batch.first_key});
  }
}

void Model::run_final_norm(Device& device, const TokenBatch& batch, int microbatch) const {
  final_norm_.forward(device, residual(microbatch, blocks_.size()), activations_.final_NC,
                      activations_.final_statistics, batch.shape.rows());
}

void Model::run_head(Device& device, const TokenBatch& batch, double* loss_sum,
                     const BackwardOptions* options) const {
  const std::int64_t rows = batch.shape.rows();
  for (std::int64_t first = 0; first < rows; first += memory_.head_rows()) {
    const std::int64_t count = std::min(memory_.head_rows(), rows - first);
    const void* x_NC = row_of(activations_.final_NC, first, spec_.width, spec_.dtype);
    head_.forward(device, x_NC, activations_.logits, count);
    device.launch(CrossEntropy{.logits = activations_.logits,
                               .targets = batch.targets + first,
                               .losses = activations_.losses + first,
                               .rows = count,
                               .row_stride = spec_.padded_vocabulary,
                               .vocabulary = spec_.vocabulary,
                               .gradient_scale = options == nullptr ? 0.0F : options->gradient_scale,
                               .dtype = spec_.dtype});
    if (options == nullptr) continue;
    head_.backward(device, x_NC, activations_.logits,
                   row_of(activations_.dfinal_NC, first, spec_.width, spec_.dtype), count,
                   options->accumulate || first > 0);
  }
  device.launch(LossSum{.values = activations_.losses, .count = rows, .sum = loss_sum});
}

void Model::forward_loss(Device& device, const TokenBatch& batch, int microbatch, double* loss_sum) const {
  forward(device, batch, microbatch);
  if (!has_head()) return;
  run_final_norm(device, batch, microbatch);
  run_head(device, batch, loss_sum, nullptr);
}

void Model::forward_backward(Device& device, const TokenBatch& batch, double* loss_sum,
                             const BackwardOptions& options) const {
  forward(device, batch, 0);
  backward(device, batch, 0, loss_sum, options);
}

void Model::backward(Device& device, const TokenBatch& batch, int microbatch, double* loss_sum,
                     const BackwardOptions& options) const {
  BucketCounter bucket(options.observer);
  void* const d_NC = output_gradient(microbatch, batch.shape).data();
  if (has_head()) {
    run_final_norm(device, batch, microbatch);
    run_head(device, batch, loss_sum, &options);
    if (spec_.tied_head) bucket.next();  // the head's gradient is a bucket of its own
    final_norm_.backward(device, residual(microbatch, blocks_.size()), activations_.dfinal_NC,
                         activations_.final_statistics, nullptr, d_NC, batch.shape.rows(),
                         options.accumulate);
    bucket.next();
  }
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const Block& block = blocks_[i];
    const BlockActivations activations = block_activations(microbatch, i);
    const BlockScratch& scratch = activations_.scratch;
    const SequencesBT sequences{batch.shape, batch.first_key};
    const bool still_there = options.follows_forward && i + 1 == blocks_.size();
    const Recompute recompute = still_there ? Recompute::none : recompute_;
    recompute_for_feed_forward(device, spec_, block, activations, scratch, sequences, recompute);
    feed_forward_backward(device, spec_, block, activations, scratch, d_NC, batch.shape, options.accumulate);
    bucket.next();
    recompute_for_attention(device, block, activations, batch.shape, recompute);
    attention_backward(device, spec_, block, activations, scratch, d_NC, sequences, options.accumulate);
    bucket.next();
  }
  if (!stage_.part.has_embedding) return;
  embedding_backward(device, batch, microbatch, options.accumulate);
  if (spec_.positions > 0) bucket.next();  // positions and tokens are two buckets, written by one op
  bucket.next();
}

void Model::embedding_backward(Device& device, const TokenBatch& batch, int microbatch,
                               bool accumulate) const {
  if (!accumulate) {
    const std::int64_t row_bytes = spec_.width * static_cast<std::int64_t>(sizeof(float));
    device.launch(FillZero{.target = token_gradient_, .bytes = spec_.padded_vocabulary * row_bytes});
    if (spec_.positions > 0)
      device.launch(FillZero{.target = position_gradient_, .bytes = spec_.positions * row_bytes});
  }
  device.launch(EmbeddingBackward{.tokens = batch.inputs,
                                  .dx = output_gradient(microbatch, batch.shape).data(),
                                  .table_gradient = token_gradient_,
                                  .positions_gradient = position_gradient_,
                                  .rows = batch.shape.rows(),
                                  .width = spec_.width,
                                  .sequence_length = batch.shape.sequence_length,
                                  .dtype = spec_.dtype});
}

const void* Model::forward_logits(Device& device, const TokenBatch& batch, std::int64_t row) const {
  forward(device, batch, 0);
  run_final_norm(device, batch, 0);
  head_.forward(device, row_of(activations_.final_NC, row, spec_.width, spec_.dtype), activations_.logits, 1);
  return activations_.logits;
}

}  // namespace holdfast
