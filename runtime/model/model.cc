#include "runtime/model/model.h"

#include <fmt/core.h>

#include <algorithm>

#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"

namespace holdfast::model {
namespace {

// Row `row` of a matrix of `width` columns whose element type is known only at run time.
std::byte* row_of(void* matrix, std::int64_t row, std::int64_t width, DType dtype) {
  return static_cast<std::byte*>(matrix) + static_cast<std::size_t>(row * width) * bytes_of(dtype);
}
const std::byte* row_of(const void* matrix, std::int64_t row, std::int64_t width, DType dtype) {
  return static_cast<const std::byte*>(matrix) + static_cast<std::size_t>(row * width) * bytes_of(dtype);
}

// Returns the entry of a ring that a microbatch uses; microbatches use the entries in turn.
template <typename T>
const T& place(const std::vector<T>& ring, int microbatch) {
  return ring[static_cast<std::size_t>(microbatch) % ring.size()];
}

// Tells inspectors of the device which part of the model the next ops are of.
void enter(Device& device, OpScope::Part part, std::int64_t layer = -1) {
  device.scope().part = part;
  device.scope().layer = static_cast<int>(layer);
}

}  // namespace

// Counts the buckets of one backward pass; the order is backward_buckets()'s.
class Model::BucketCounter {
 public:
  explicit BucketCounter(BucketObserver* observer) : observer_(observer) {}
  // Waits for the memory of the next `count` buckets; called before they are written.
  Result<void> wait_for_slots(int count) {
    for (int i = 0; observer_ != nullptr && i < count; ++i)
      HF_TRY_VOID(observer_->wait_for_slot(bucket_ + i));
    return {};
  }
  void next() {
    if (observer_ != nullptr) observer_->bucket_launched(bucket_);
    ++bucket_;
  }

 private:
  BucketObserver* observer_;
  int bucket_ = 0;
};

Model::Model(const ModelSpec& spec, BatchShapeBT largest, Mode mode, MemoryPlan& plan, Recompute recompute)
    : Model(spec, largest, mode, plan, recompute, whole_stage(spec)) {}

Model::Model(const ModelSpec& spec, BatchShapeBT largest, Mode mode, MemoryPlan& plan, Recompute recompute,
             const StageShape& stage)
    : spec_(spec),
      slice_(spec.slice()),
      recompute_(recompute),
      stage_(stage),
      lowest_block_(static_cast<std::size_t>(std::clamp<std::int64_t>(
          lowest_trained_layer(spec) - stage.part.first_layer, 0, stage.part.layers()))),
      memory_(spec, largest, mode == Mode::train, recompute, stage, plan),
      alone_(std::make_unique<TensorGroup>(stage.tensor)) {
  HF_CHECK(0 <= stage.part.first_layer && stage.part.first_layer <= stage.part.end_layer &&
           stage.part.end_layer <= spec.layers && stage.microbatches_in_flight >= 1 &&
           stage.weight_gradients_pending >= 0);
}

void Model::bind(Device& device, const MemoryArena& arena, const BucketPlan& buckets, std::byte* parameters,
                 float* gradients) {
  activations_ = memory_.bind(device, arena);
  const ParameterTable table(spec_, buckets, parameters, gradients);
  float* norm_slices = activations_.norm_slices;
  AdapterBinding adapters{.memory = activations_.adapters, .slice_gradients = activations_.adapter_slices};
  const auto norm_of = [&](const std::string& name, const std::string& branch_end = "") {
    Norm norm = table.norm(name, branch_end);
    norm.unused_gradients = activations_.unused_norm_gradients;
    norm.slice_gradients = norm_slices;
    if (norm_slices != nullptr) norm_slices += memory_.norm_slice_elements(norm.width);
    return norm;
  };
  for (std::int64_t layer = stage_.part.first_layer; layer < stage_.part.end_layer; ++layer) {
    const std::string name = fmt::format("layers.{}.", layer);
    Block block;
    block.attention_norm = norm_of(name + "attention_norm", name + "attention.output");
    block.feed_forward_norm = norm_of(name + "feed_forward_norm", name + "feed_forward.down");
    block.qkv = table.column_linear(name + "attention.qkv");
    if (spec_.has_head_norms) {
      block.query_norm = norm_of(name + "attention.query_norm");
      block.key_norm = norm_of(name + "attention.key_norm");
    }
    block.output = table.row_linear(name + "attention.output");
    block.up = table.column_linear(name + "feed_forward.up");
    block.down = table.row_linear(name + "feed_forward.down");
    bind_adapters(table, layer, adapters, block);
    blocks_.push_back(std::move(block));
  }
  if (has_head()) final_norm_ = norm_of("final_norm");
  bind_ends(table);
  bind_buckets(buckets);
}

void Model::bind_adapters(const ParameterTable& table, std::int64_t layer, AdapterBinding& binding,
                          Block& block) const {
  for (const AdapterSpec& adapter : adapters_of(spec_, layer)) {
    const auto add_to = [&](auto& linear) {
      table.add_adapter(adapter, binding, linear.slices, linear.shared);
    };
    if (adapter.layer.ends_with(".qkv")) add_to(block.qkv);
    if (adapter.layer.ends_with(".output")) add_to(block.output);
    if (adapter.layer.ends_with(".up")) add_to(block.up);
    if (adapter.layer.ends_with(".down")) add_to(block.down);
  }
}

void Model::bind_ends(const ParameterTable& table) {
  if (has_head()) head_ = table.head();
  if (!stage_.part.has_embedding) return;
  token_table_ = table.column_linear("embedding.token");
  if (spec_.positions == 0) return;
  position_table_ = table.parameter("embedding.position.weight");
  position_gradient_ = table.gradient("embedding.position.weight");
}

void Model::bind_buckets(const BucketPlan& buckets) {
  // Each half of a layer, and each table, has at most one bucket that is trained.
  const auto trained_bucket_of = [&buckets](const std::string& names_begin) {
    const auto holds = [&names_begin](const Bucket& bucket) {
      return bucket.tied_to < 0 && !bucket.is_frozen() &&
             std::ranges::any_of(bucket.tensors, [&names_begin](const BucketTensor& tensor) {
               return tensor.name.starts_with(names_begin);
             });
    };
    const auto found = std::ranges::find_if(buckets.buckets(), holds);
    return found == buckets.buckets().end() ? -1 : static_cast<int>(found - buckets.buckets().begin());
  };
  for (std::int64_t layer = stage_.part.first_layer; layer < stage_.part.end_layer; ++layer) {
    const std::string name = fmt::format("layers.{}.", layer);
    block_buckets_.push_back({.attention = trained_bucket_of(name + "attention"),
                              .feed_forward = trained_bucket_of(name + "feed_forward")});
  }
  if (!stage_.part.has_embedding) return;
  embedding_bucket_ = trained_bucket_of("embedding.token.");
  if (spec_.positions == 0) return;
  embedding_bucket_ = std::min(embedding_bucket_, trained_bucket_of("embedding.position."));
}

Result<void> Model::wait_for_parameters(int bucket) const {
  return parameter_wait_ && bucket >= 0 ? parameter_wait_(bucket) : Result<void>();
}

void Model::join(TensorGroup& group) {
  HF_CHECK(group.share().slices == stage_.tensor.slices && group.share().first == stage_.tensor.first);
  joined_ = &group;
}

BlockRun Model::run_of(Device& device, const TokenBatch& batch) const {
  return {.device = device,
          .slice = slice_,
          .group = group(),
          .scratch = activations_.scratch,
          .sequences = {batch.shape, batch.first_key, batch.continued}};
}

void* Model::residual(int microbatch, std::size_t index) const {
  if (index == 0) return place(activations_.input_NC, microbatch);
  return place(activations_.microbatches, microbatch).residual_NC[index - 1];
}

BlockActivations Model::block_activations(int microbatch, std::size_t index) const {
  BlockActivations activations = place(activations_.microbatches, microbatch).blocks[index];
  activations.x_NC = residual(microbatch, index);
  return activations;
}

const MicrobatchGradients& Model::gradients(int microbatch) const {
  return place(activations_.gradients, microbatch);
}

void* Model::dresidual(int microbatch, std::size_t index) const {
  if (!stage_.splits_backward() || index == blocks_.size()) return place(activations_.doutput_NC, microbatch);
  if (index == 0) return place(activations_.dinput_NC, microbatch);
  return gradients(microbatch).dresidual_NC[index - 1];
}

BlockGradients Model::block_gradients(int microbatch, std::size_t index) const {
  BlockGradients of_block = gradients(microbatch).blocks[index];
  of_block.dout_NC = dresidual(microbatch, index + 1);
  of_block.din_NC = dresidual(microbatch, index);
  if (!stage_.splits_backward()) of_block.dmid_NC = of_block.dout_NC;
  return of_block;
}

std::size_t Model::boundary_bytes(BatchShapeBT shape) const {
  return static_cast<std::size_t>(group().own_rows(shape.rows()) * spec_.width) * bytes_of(spec_.dtype);
}

std::span<std::byte> Model::input(int microbatch, BatchShapeBT shape) const {
  return {static_cast<std::byte*>(residual(microbatch, 0)), boundary_bytes(shape)};
}

std::span<std::byte> Model::output(int microbatch, BatchShapeBT shape) const {
  return {static_cast<std::byte*>(residual(microbatch, blocks_.size())), boundary_bytes(shape)};
}

std::span<std::byte> Model::output_gradient(int microbatch, BatchShapeBT shape) const {
  return {static_cast<std::byte*>(dresidual(microbatch, blocks_.size())), boundary_bytes(shape)};
}

std::span<std::byte> Model::input_gradient(int microbatch, BatchShapeBT shape) const {
  return {static_cast<std::byte*>(dresidual(microbatch, 0)), boundary_bytes(shape)};
}

Model::TokenRange Model::tokens_of_slice(std::size_t index) const {
  const std::int64_t first =
      (group().share().first + static_cast<std::int64_t>(index)) * slice_.padded_vocabulary;
  return {.first = first,
          .count = std::clamp<std::int64_t>(spec_.vocabulary - first, 0, slice_.padded_vocabulary)};
}

// Every slice writes the rows whose tokens it has; what peers have of this rank's rows is added to its zeros.
Result<void> Model::embed(Device& device, const TokenBatch& batch, int microbatch) const {
  const std::int64_t rows = batch.shape.rows(), own_rows = group().own_rows(rows);
  const std::size_t row_bytes = static_cast<std::size_t>(spec_.width) * bytes_of(spec_.dtype);
  const bool alone = group().share().ranks() == 1, sliced = spec_.tensor_lanes > 1;
  void* const x_NC = residual(microbatch, 0);
  auto* const all = static_cast<std::byte*>(alone ? x_NC : activations_.scratch.sums.parts);
  const std::size_t all_bytes = static_cast<std::size_t>(rows) * row_bytes;
  if (!alone) device.launch(FillZero{.target = all, .bytes = static_cast<std::int64_t>(all_bytes)});
  const auto embed_rows = [&](std::int64_t first_row, std::int64_t count, std::int64_t length,
                              std::int64_t position) {
    for (std::size_t i = 0; i < token_table_.slices.size(); ++i) {
      device.launch(
          EmbeddingForward{.tokens = batch.inputs + first_row,
                           .table = token_table_.slices[i].weight,
                           .positions = position_table_ == nullptr
                                            ? nullptr
                                            : row_of(position_table_, position, spec_.width, spec_.dtype),
                           .x = row_of(all, first_row, spec_.width, spec_.dtype),
                           .rows = count,
                           .width = spec_.width,
                           .sequence_length = length,
                           .first_token = sliced ? tokens_of_slice(i).first : 0,
                           .token_count = sliced ? slice_.padded_vocabulary : 0,
                           .dtype = spec_.dtype});
    }
  };
  if (batch.continued.empty()) embed_rows(0, rows, batch.shape.sequence_length, 0);
  std::int64_t first_row = 0;
  for (const ContinuedRows& part : batch.continued) {
    embed_rows(first_row, part.rows, part.rows, part.position);
    first_row += part.rows;
  }
  if (alone) return {};
  auto* const arrivals = reinterpret_cast<std::byte*>(activations_.scratch.sums.arrivals);
  HF_TRY(const TensorGroup::Scatter scatter,
         group().begin_scatter(device, {all, all_bytes}, {arrivals, all_bytes}));
  HF_TRY_VOID(group().finish_scatter(device, scatter));
  const std::size_t own_bytes = static_cast<std::size_t>(own_rows) * row_bytes;
  const void* sum = all + static_cast<std::size_t>(group().share().rank()) * own_bytes;
  for (int peer = 0; peer < group().share().ranks(); ++peer) {
    if (peer == group().share().rank()) continue;
    device.launch(Add{.a = sum,
                      .b = arrivals + static_cast<std::size_t>(peer) * own_bytes,
                      .y = x_NC,
                      .count = own_rows * spec_.width,
                      .dtype = spec_.dtype});
    sum = x_NC;
  }
  return {};
}

Result<void> Model::forward(Device& device, const TokenBatch& batch, int microbatch) const {
  if (stage_.part.has_embedding) {
    enter(device, OpScope::Part::embedding);
    HF_TRY_VOID(wait_for_parameters(embedding_bucket_));
    HF_TRY_VOID(embed(device, batch, microbatch));
    if (after_embedding_) after_embedding_(microbatch);
  }
  const BlockRun run = run_of(device, batch);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const BlockActivations activations = block_activations(microbatch, i);
    enter(device, OpScope::Part::attention, layer_of(i));
    HF_TRY_VOID(wait_for_parameters(block_buckets_[i].attention));
    HF_TRY(const BegunMid mid, attention_forward(run, blocks_[i], activations));
    enter(device, OpScope::Part::feed_forward, layer_of(i));
    HF_TRY_VOID(wait_for_parameters(block_buckets_[i].feed_forward));
    HF_TRY_VOID(feed_forward_forward(run, blocks_[i], activations, mid, residual(microbatch, i + 1)));
  }
  return {};
}

Result<void> Model::run_final_norm(Device& device, const TokenBatch& batch, int microbatch) const {
  enter(device, OpScope::Part::head);
  return gathered_norm(run_of(device, batch), final_norm_, residual(microbatch, blocks_.size()),
                       gradients(microbatch).final_NC, activations_.final_statistics);
}

Result<void> Model::cross_entropy(Device& device, const TokenBatch& batch, HeadChunk chunk,
                                  const BackwardOptions* options) const {
  if (spec_.tensor_lanes > 1) return cross_entropy_of_slices(device, batch, chunk, options);
  device.launch(CrossEntropy{.logits = chunk.logits,
                             .targets = batch.targets + chunk.first_row,
                             .losses = activations_.head.losses + chunk.first_row,
                             .rows = chunk.rows,
                             .row_stride = spec_.padded_vocabulary,
                             .vocabulary = spec_.vocabulary,
                             .gradient_scale = options == nullptr ? 0.0F : options->gradient_scale,
                             .dtype = spec_.dtype});
  return {};
}

Result<void> Model::cross_entropy_of_slices(Device& device, const TokenBatch& batch, HeadChunk chunk,
                                            const BackwardOptions* options) const {
  const HeadMemory& head = activations_.head;
  const TensorShare& share = group().share();
  const std::int64_t columns = slice_.padded_vocabulary;
  const auto logits_of = [&](std::size_t i) {
    return row_of(chunk.logits, static_cast<std::int64_t>(i) * chunk.rows, columns, spec_.dtype);
  };
  for (std::size_t i = 0; i < head_.slices.size(); ++i) {
    const TokenRange tokens = tokens_of_slice(i);
    device.launch(CrossEntropySlice{
        .logits = logits_of(i),
        .targets = batch.targets + chunk.first_row,
        .statistics = head.of_slices + (share.first + static_cast<std::int64_t>(i)) * chunk.rows,
        .rows = chunk.rows,
        .row_stride = columns,
        .columns = tokens.count,
        .first_token = tokens.first,
        .dtype = spec_.dtype});
  }
  HF_TRY_VOID(
      group().all_gather(device, std::as_writable_bytes(std::span(
                                     head.of_slices, static_cast<std::size_t>(share.slices * chunk.rows)))));
  device.launch(CrossEntropyJoin{.slices = head.of_slices,
                                 .targets = batch.targets + chunk.first_row,
                                 .losses = head.losses + chunk.first_row,
                                 .statistics = head.of_rows,
                                 .rows = chunk.rows,
                                 .slice_count = share.slices});
  if (options == nullptr) return {};
  for (std::size_t i = 0; i < head_.slices.size(); ++i) {
    const TokenRange tokens = tokens_of_slice(i);
    device.launch(CrossEntropyGradient{.logits = logits_of(i),
                                       .targets = batch.targets + chunk.first_row,
                                       .statistics = head.of_rows,
                                       .rows = chunk.rows,
                                       .row_stride = columns,
                                       .columns = tokens.count,
                                       .first_token = tokens.first,
                                       .gradient_scale = options->gradient_scale,
                                       .dtype = spec_.dtype});
  }
  return {};
}

// The gradient of the final norm's output: of slices in parts, which are added when all chunks are there.
void Model::head_input_gradient(Device& device, const TokenBatch& batch, HeadChunk chunk) const {
  const bool sliced = spec_.tensor_lanes > 1;
  const DType dtype_dx = sliced ? DType::fp32 : spec_.dtype;
  void* const dx = sliced ? activations_.scratch.sums.parts : activations_.head.dfinal_NC;
  for (std::size_t i = 0; i < head_.slices.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    head_.slices[i].input_gradient(
        device, row_of(chunk.logits, index * chunk.rows, slice_.padded_vocabulary, spec_.dtype),
        row_of(dx, index * batch.shape.rows() + chunk.first_row, spec_.width, dtype_dx), chunk.rows,
        dtype_dx);
  }
}

// Chunks have logits of their own where their gradients are to stay, else they take turns.
Model::HeadChunk Model::head_chunk(int microbatch, std::int64_t first_row, std::int64_t rows) const {
  const MicrobatchGradients& of_microbatch = gradients(microbatch);
  const std::int64_t first = stage_.splits_backward() ? first_row * stage_.tensor.count : 0;
  return {.first_row = first_row,
          .rows = rows,
          .x_NC = row_of(of_microbatch.final_NC, first_row, spec_.width, spec_.dtype),
          .logits = row_of(of_microbatch.logits, first, slice_.padded_vocabulary, spec_.dtype)};
}

Result<void> Model::run_head(Device& device, const TokenBatch& batch, int microbatch, double* loss_sum,
                             const BackwardOptions* options) const {
  const std::int64_t rows = batch.shape.rows();
  const bool backward = options != nullptr;
  const BackwardPass pass = backward ? options->pass() : BackwardPass{};
  for (std::int64_t first = 0; first < rows; first += memory_.head_rows()) {
    const HeadChunk chunk = head_chunk(microbatch, first, std::min(memory_.head_rows(), rows - first));
    if (pass.of_inputs()) {
      head_.forward(device, chunk.x_NC, chunk.logits, chunk.rows);
      HF_TRY_VOID(cross_entropy(device, batch, chunk, options));
      if (backward) head_input_gradient(device, batch, chunk);
    }
    if (backward && pass.of_weights())
      head_.weight_gradients(device, chunk.x_NC, chunk.logits, chunk.rows, pass.accumulate || first > 0);
  }
  if (!pass.of_inputs()) return {};
  device.launch(LossSum{.values = activations_.head.losses, .count = rows, .sum = loss_sum});
  if (!backward || spec_.tensor_lanes == 1) return {};
  const SliceSums sums = run_of(device, batch).sums();
  HF_TRY(const TensorGroup::Scatter own_sum, group().begin_sum(device, sums));
  return group().finish_sum(device, own_sum, sums, {.y = activations_.head.dfinal_NC, .dtype = spec_.dtype});
}

Result<void> Model::forward_loss(Device& device, const TokenBatch& batch, int microbatch,
                                 double* loss_sum) const {
  HF_TRY_VOID(forward(device, batch, microbatch));
  if (!has_head()) return {};
  HF_TRY_VOID(run_final_norm(device, batch, microbatch));
  return run_head(device, batch, microbatch, loss_sum, nullptr);
}

Result<void> Model::forward_backward(Device& device, const TokenBatch& batch, double* loss_sum,
                                     const BackwardOptions& options) const {
  HF_TRY_VOID(forward(device, batch, 0));
  BackwardOptions of_part = options;
  for (const BackwardPart part : backward_parts()) {
    of_part.part = part;
    HF_TRY_VOID(backward(device, batch, 0, loss_sum, of_part));
  }
  return {};
}

std::span<const BackwardPart> Model::backward_parts() const {
  static constexpr BackwardPart whole[] = {BackwardPart::whole};
  static constexpr BackwardPart split[] = {BackwardPart::inputs, BackwardPart::weights};
  if (stage_.splits_backward()) return split;
  return whole;
}

template <typename Layer>
Result<void> Model::complete(Device& device, const Layer& layer, const BackwardOptions& options) const {
  if (!options.completes_lane || !options.pass().of_weights()) return {};
  return layer.sum_slices(device, group());
}

Result<void> Model::backward(Device& device, const TokenBatch& batch, int microbatch, double* loss_sum,
                             const BackwardOptions& options) const {
  HF_CHECK((options.part != BackwardPart::whole) == stage_.splits_backward());
  BucketCounter bucket(options.pass().of_weights() ? options.observer : nullptr);
  if (has_head()) HF_TRY_VOID(head_backward(device, batch, microbatch, loss_sum, options, bucket));
  for (std::size_t i = blocks_.size(); i-- > lowest_block_;)
    HF_TRY_VOID(block_backward(device, batch, microbatch, i, options, bucket));
  if (!stage_.part.has_embedding || !trains_embedding() || !options.pass().of_weights()) return {};
  const int buckets = spec_.positions > 0 ? 2 : 1;  // positions and tokens, written by one op
  HF_TRY_VOID(bucket.wait_for_slots(buckets));
  HF_TRY_VOID(embedding_backward(device, batch, microbatch, options.accumulate));
  if (buckets > 1) bucket.next();
  bucket.next();
  return {};
}

Result<void> Model::head_backward(Device& device, const TokenBatch& batch, int microbatch, double* loss_sum,
                                  const BackwardOptions& options, BucketCounter& bucket) const {
  enter(device, OpScope::Part::head);
  if (options.pass().of_inputs()) HF_TRY_VOID(run_final_norm(device, batch, microbatch));
  const bool has_tied_bucket = spec_.tied_head && trains_head();  // of the head's gradient alone
  HF_TRY_VOID(bucket.wait_for_slots((has_tied_bucket ? 1 : 0) + (final_norm_.is_trained() ? 1 : 0)));
  HF_TRY_VOID(run_head(device, batch, microbatch, loss_sum, &options));
  if (has_tied_bucket) bucket.next();
  final_norm_.backward(device, group().share(), residual(microbatch, blocks_.size()),
                       activations_.final_statistics,
                       {.dy_NC = activations_.head.dfinal_NC,
                        .dx_NC = dresidual(microbatch, blocks_.size()),
                        .sums = gradients(microbatch).final_norm_sums},
                       group().own_rows(batch.shape.rows()), options.pass());
  HF_TRY_VOID(complete(device, final_norm_, options));
  if (final_norm_.is_trained()) bucket.next();
  return {};
}

Result<void> Model::block_backward(Device& device, const TokenBatch& batch, int microbatch, std::size_t index,
                                   const BackwardOptions& options, BucketCounter& bucket) const {
  const BlockRun run = run_of(device, batch);
  const Block& block = blocks_[index];
  const BlockActivations activations = block_activations(microbatch, index);
  const BlockGradients of_block = block_gradients(microbatch, index);
  const Recompute recompute = recompute_before(index, options);
  const HalfBuckets trained = block_buckets_[index];
  const bool trains_feed_forward = trained.feed_forward >= 0, trains_attention = trained.attention >= 0;
  enter(device, OpScope::Part::feed_forward, layer_of(index));
  HF_TRY_VOID(recompute_for_feed_forward(run, block, activations, recompute));
  if (trains_feed_forward) HF_TRY_VOID(bucket.wait_for_slots(1));
  HF_TRY_VOID(feed_forward_backward(run, block, activations, of_block, options.pass()));
  HF_TRY_VOID(complete(device, block.down, options));
  HF_TRY_VOID(complete(device, block.up, options));
  HF_TRY_VOID(complete(device, block.feed_forward_norm, options));
  if (trains_feed_forward) bucket.next();
  enter(device, OpScope::Part::attention, layer_of(index));
  HF_TRY_VOID(recompute_for_attention(run, block, activations, recompute));
  if (trains_attention) HF_TRY_VOID(bucket.wait_for_slots(1));
  HF_TRY_VOID(attention_backward(run, block, activations, of_block, options.pass()));
  HF_TRY_VOID(complete(device, block.output, options));
  HF_TRY_VOID(complete(device, block.qkv, options));
  HF_TRY_VOID(complete(device, block.attention_norm, options));
  if (spec_.has_head_norms) {
    HF_TRY_VOID(complete(device, block.query_norm, options));
    HF_TRY_VOID(complete(device, block.key_norm, options));
  }
  if (trains_attention) bucket.next();
  return {};
}

// Returns which part of the block's forward is computed again. Full recomputation is done for either part.
Recompute Model::recompute_before(std::size_t index, const BackwardOptions& options) const {
  const BackwardPass pass = options.pass();
  const bool still_there = options.follows_forward && index + 1 == blocks_.size();
  if (still_there && pass.of_inputs()) return Recompute::none;
  // Results that are cheap to compute are read by weight gradients only.
  if (recompute_ == Recompute::selective && !pass.of_weights()) return Recompute::none;
  return recompute_;
}

Result<void> Model::embedding_backward(Device& device, const TokenBatch& batch, int microbatch,
                                       bool accumulate) const {
  enter(device, OpScope::Part::embedding);
  HF_TRY(const void* const dx_NC, gather_gradient(run_of(device, batch), dresidual(microbatch, 0)));
  const std::int64_t row_bytes = spec_.width * static_cast<std::int64_t>(sizeof(float));
  if (!accumulate && spec_.positions > 0)
    device.launch(FillZero{.target = position_gradient_, .bytes = spec_.positions * row_bytes});
  for (std::size_t i = 0; i < token_table_.slices.size(); ++i) {
    float* const gradient = token_table_.slices[i].weight_gradient;
    const bool sliced = spec_.tensor_lanes > 1;
    if (!accumulate)
      device.launch(FillZero{.target = gradient, .bytes = slice_.padded_vocabulary * row_bytes});
    device.launch(EmbeddingBackward{.tokens = batch.inputs,
                                    .dx = dx_NC,
                                    .table_gradient = gradient,
                                    .positions_gradient = i == 0 ? position_gradient_ : nullptr,
                                    .rows = batch.shape.rows(),
                                    .width = spec_.width,
                                    .sequence_length = batch.shape.sequence_length,
                                    .first_token = sliced ? tokens_of_slice(i).first : 0,
                                    .token_count = sliced ? slice_.padded_vocabulary : 0,
                                    .dtype = spec_.dtype});
  }
  return {};
}

const void* Model::forward_logits(Device& device, const TokenBatch& batch, std::int64_t first_row,
                                  std::int64_t rows) const {
  HF_CHECK(group().share().ranks() == 1 && rows <= head_rows());
  static_cast<void>(forward(device, batch, 0).ok());  // a group of one has no errors
  static_cast<void>(run_final_norm(device, batch, 0).ok());
  const HeadChunk chunk = head_chunk(0, first_row, rows);
  head_.forward(device, chunk.x_NC, chunk.logits, chunk.rows);
  return chunk.logits;
}

}  // namespace holdfast::model
