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
    : spec_(spec), recompute_(recompute), memory_(spec, largest, mode == Mode::train, recompute, plan) {}

void Model::bind(Device& device, const MemoryArena& arena, const BucketPlan& buckets, std::byte* parameters,
                 float* gradients) {
  activations_ = memory_.bind(device, arena);
  const ParameterTable table(spec_, buckets, parameters, gradients);
  for (std::int64_t layer = 0; layer < spec_.layers; ++layer) {
    const std::string name = fmt::format("layers.{}.", layer);
    blocks_.push_back({.attention_norm = table.norm(name + "attention_norm"),
                       .feed_forward_norm = table.norm(name + "feed_forward_norm"),
                       .qkv = table.linear(name + "attention.qkv"),
                       .output = table.linear(name + "attention.output"),
                       .up = table.linear(name + "feed_forward.up"),
                       .down = table.linear(name + "feed_forward.down")});
  }
  final_norm_ = table.norm("final_norm");
  head_ = table.head();
  token_table_ = table.parameter("embedding.token.weight");
  token_gradient_ = table.gradient("embedding.token.weight");
  if (spec_.positions == 0) return;
  position_table_ = table.parameter("embedding.position.weight");
  position_gradient_ = table.gradient("embedding.position.weight");
}

void Model::forward_trunk(Device& device, const TokenBatch& batch) const {
  const BatchShapeBT shape = batch.shape;
  device.launch(EmbeddingForward{.tokens = batch.inputs,
                                 .table = token_table_,
                                 .positions = position_table_,
                                 .x = activations_.residual_NC[0],
                                 .rows = shape.rows(),
                                 .width = spec_.width,
                                 .sequence_length = shape.sequence_length,
                                 .dtype = spec_.dtype});
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    block_forward(device, spec_, blocks_[layer], activations_.blocks[layer], activations_.scratch,
                  activations_.residual_NC[layer + 1], {shape, batch.first_key});
  }
  final_norm_.forward(device, activations_.residual_NC.back(), activations_.final_NC,
                      activations_.final_statistics, shape.rows());
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

void Model::forward_loss(Device& device, const TokenBatch& batch, double* loss_sum) const {
  forward_trunk(device, batch);
  run_head(device, batch, loss_sum, nullptr);
}

void Model::forward_backward(Device& device, const TokenBatch& batch, double* loss_sum,
                             const BackwardOptions& options) const {
  forward_trunk(device, batch);
  run_head(device, batch, loss_sum, &options);
  backward_trunk(device, batch, options);
}

void Model::backward_trunk(Device& device, const TokenBatch& batch, const BackwardOptions& options) const {
  BucketCounter bucket(options.observer);
  if (spec_.tied_head) bucket.next();  // the head's gradient is a bucket of its own, complete since run_head
  void* d_NC = activations_.d_NC;
  final_norm_.backward(device, activations_.residual_NC.back(), activations_.dfinal_NC,
                       activations_.final_statistics, nullptr, d_NC, batch.shape.rows(), options.accumulate);
  bucket.next();
  for (std::size_t layer = blocks_.size(); layer-- > 0;) {
    const Block& block = blocks_[layer];
    const BlockActivations& activations = activations_.blocks[layer];
    const BlockScratch& scratch = activations_.scratch;
    const SequencesBT sequences{batch.shape, batch.first_key};
    // What the blocks share holds the last block's part, as forward left it.
    const Recompute recompute = layer + 1 == blocks_.size() ? Recompute::none : recompute_;
    recompute_for_feed_forward(device, spec_, block, activations, scratch, sequences, recompute);
    feed_forward_backward(device, spec_, block, activations, scratch, d_NC, batch.shape, options.accumulate);
    bucket.next();
    recompute_for_attention(device, block, activations, batch.shape, recompute);
    attention_backward(device, spec_, block, activations, scratch, d_NC, sequences, options.accumulate);
    bucket.next();
  }
  embedding_backward(device, batch, options.accumulate);
  if (spec_.positions > 0) bucket.next();  // positions and tokens are two buckets, written by one op
  bucket.next();
}

void Model::embedding_backward(Device& device, const TokenBatch& batch, bool accumulate) const {
  if (!accumulate) {
    const std::int64_t row_bytes = spec_.width * static_cast<std::int64_t>(sizeof(float));
    device.launch(FillZero{.target = token_gradient_, .bytes = spec_.padded_vocabulary * row_bytes});
    if (spec_.positions > 0)
      device.launch(FillZero{.target = position_gradient_, .bytes = spec_.positions * row_bytes});
  }
  device.launch(EmbeddingBackward{.tokens = batch.inputs,
                                  .dx = activations_.d_NC,
                                  .table_gradient = token_gradient_,
                                  .positions_gradient = position_gradient_,
                                  .rows = batch.shape.rows(),
                                  .width = spec_.width,
                                  .sequence_length = batch.shape.sequence_length,
                                  .dtype = spec_.dtype});
}

const void* Model::forward_logits(Device& device, const TokenBatch& batch, std::int64_t row) const {
  forward_trunk(device, batch);
  head_.forward(device, row_of(activations_.final_NC, row, spec_.width, spec_.dtype), activations_.logits, 1);
  return activations_.logits;
}

}  // namespace holdfast
