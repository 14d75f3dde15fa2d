#include "runtime/bench/op_samples.h"

#include <algorithm>

#include "kernels/visit_op.h"
#include "runtime/bench/op_text.h"
#include "runtime/config/presets.h"
#include "runtime/core/shard_spec.h"

namespace holdfast {
namespace {

using Samples = std::vector<OpSample>;

// One linear layer of a model.
struct LinearShape {
  const char* name;
  std::int64_t outputs, inputs, rows;
  bool bias;
};

std::vector<LinearShape> linears(const SampleSource& source) {
  const ModelSpec& spec = source.spec;
  const std::int64_t rows = source.batch.rows();
  return {{"qkv", spec.qkv_width(), spec.width, rows, spec.biases},
          {"attention output", spec.width, spec.attention_width(), rows, spec.biases},
          {"up", spec.up_width(), spec.width, rows, spec.biases},
          {"down", spec.width, spec.feed_forward, rows, spec.biases},
          {"head", spec.padded_vocabulary, spec.width, source.rows_of_head, false}};
}

Samples matmuls(const SampleSource& source) {
  Samples samples;
  const DType dtype = source.spec.dtype;
  for (const LinearShape& layer : linears(source)) {
    const auto [name, o, i, rows, bias] = layer;
    samples.push_back({fmt::format("{}, forward", name), [=](OpMemory& memory) {
                         return OpCall(Matmul{.a = memory.values(rows * i, dtype),
                                              .b = memory.values(o * i, dtype),
                                              .c = memory.values(rows * o, dtype),
                                              .bias = bias ? memory.values(o, dtype) : nullptr,
                                              .m = rows,
                                              .n = o,
                                              .k = i,
                                              .lda = i,
                                              .ldb = i,
                                              .ldc = o,
                                              .transpose_b = true,
                                              .dtype = dtype,
                                              .dtype_c = dtype});
                       }});
    samples.push_back({fmt::format("{}, input gradient", name), [=](OpMemory& memory) {
                         return OpCall(Matmul{.a = memory.values(rows * o, dtype),
                                              .b = memory.values(o * i, dtype),
                                              .c = memory.values(rows * i, dtype),
                                              .m = rows,
                                              .n = i,
                                              .k = o,
                                              .lda = o,
                                              .ldb = i,
                                              .ldc = i,
                                              .dtype = dtype,
                                              .dtype_c = dtype});
                       }});
    samples.push_back({fmt::format("{}, weight gradient", name), [=](OpMemory& memory) {
                         return OpCall(Matmul{.a = memory.values(rows * o, dtype),
                                              .b = memory.values(rows * i, dtype),
                                              .c = memory.floats(o * i),
                                              .m = o,
                                              .n = i,
                                              .k = rows,
                                              .lda = o,
                                              .ldb = i,
                                              .ldc = i,
                                              .transpose_a = true,
                                              .dtype = dtype});
                       }});
  }
  return samples;
}

Samples bias_gradients(const SampleSource& source) {
  Samples samples;
  const DType dtype = source.spec.dtype;
  for (const LinearShape& layer : linears(source)) {
    if (!layer.bias) continue;
    const std::int64_t rows = layer.rows, columns = layer.outputs;
    samples.push_back({layer.name, [=](OpMemory& memory) {
                         return OpCall(BiasGradient{.dy = memory.values(rows * columns, dtype),
                                                    .gradient = memory.floats(columns),
                                                    .rows = rows,
                                                    .columns = columns,
                                                    .dtype = dtype});
                       }});
  }
  return samples;
}

Samples embeddings(OpId id, const SampleSource& source) {
  const ModelSpec spec = source.spec;
  const BatchShapeBT batch = source.batch;
  const std::int64_t positions = spec.positions * spec.width;
  if (id == EmbeddingForward::id) {
    return {{"embedding", [=](OpMemory& memory) {
               return OpCall(EmbeddingForward{
                   .tokens = memory.tokens(batch.rows(), spec.vocabulary),
                   .table = memory.values(spec.padded_vocabulary * spec.width, spec.dtype),
                   .positions = positions > 0 ? memory.values(positions, spec.dtype) : nullptr,
                   .x = memory.values(batch.rows() * spec.width, spec.dtype),
                   .rows = batch.rows(),
                   .width = spec.width,
                   .sequence_length = batch.sequence_length,
                   .dtype = spec.dtype});
             }}};
  }
  return {{"embedding", [=](OpMemory& memory) {
             return OpCall(
                 EmbeddingBackward{.tokens = memory.tokens(batch.rows(), spec.vocabulary),
                                   .dx = memory.values(batch.rows() * spec.width, spec.dtype),
                                   .table_gradient = memory.floats(spec.padded_vocabulary * spec.width),
                                   .positions_gradient = positions > 0 ? memory.floats(positions) : nullptr,
                                   .rows = batch.rows(),
                                   .width = spec.width,
                                   .sequence_length = batch.sequence_length,
                                   .dtype = spec.dtype});
           }}};
}

template <typename Forward>
Samples norm_forward(const SampleSource& source) {
  const std::int64_t rows = source.batch.rows(), width = source.spec.width;
  const DType dtype = source.spec.dtype;
  return {{"norm", [=](OpMemory& memory) {
             Forward op;
             op.x = memory.values(rows * width, dtype);
             op.weight = memory.values(width, dtype);
             op.y = memory.values(rows * width, dtype);
             op.rstd = memory.floats(rows);
             op.rows = rows;
             op.width = width;
             op.dtype = dtype;
             if constexpr (requires { op.mean; }) {
               op.bias = memory.values(width, dtype);
               op.mean = memory.floats(rows);
             }
             return OpCall(op);
           }}};
}

// In place over the gradient that flows around the norm, as in a block.
template <typename Backward>
Samples norm_backward(const SampleSource& source) {
  const std::int64_t rows = source.batch.rows(), width = source.spec.width;
  const DType dtype = source.spec.dtype;
  return {{"norm", [=](OpMemory& memory) {
             Backward op;
             op.x = memory.values(rows * width, dtype);
             op.weight = memory.values(width, dtype);
             op.dy = memory.values(rows * width, dtype);
             op.rstd = memory.positive_floats(rows);
             op.dx = memory.values(rows * width, dtype);
             op.dresidual = op.dx;
             op.weight_gradient = memory.floats(width);
             op.rows = rows;
             op.width = width;
             op.dtype = dtype;
             if constexpr (requires { op.mean; }) {
               op.mean = memory.floats(rows);
               op.bias_gradient = memory.floats(width);
             }
             return OpCall(op);
           }}};
}

Samples rotary(const SampleSource& source) {
  const ModelSpec spec = source.spec;
  const BatchShapeBT batch = source.batch;
  if (spec.positions > 0) return {};
  return {{"queries and keys", [=](OpMemory& memory) {
             const std::int64_t table = batch.sequence_length * spec.head_size / 2;
             return OpCall(Rotary{.x = memory.values(batch.rows() * spec.qkv_width(), spec.dtype),
                                  .cosine = memory.floats(table),
                                  .sine = memory.floats(table),
                                  .rows = batch.rows(),
                                  .row_stride = spec.qkv_width(),
                                  .heads = spec.heads + spec.kv_heads,
                                  .head_size = spec.head_size,
                                  .sequence_length = batch.sequence_length,
                                  .dtype = spec.dtype});
           }}};
}

template <typename Attention>
Attention attention_shape(const ModelSpec& spec, BatchShapeBT batch) {
  Attention op;
  op.batch = batch.batch;
  op.sequence_length = batch.sequence_length;
  op.heads = spec.heads;
  op.kv_heads = spec.kv_heads;
  op.head_size = spec.head_size;
  op.dtype = spec.dtype;
  return op;
}

Samples attention(OpId id, const SampleSource& source) {
  const ModelSpec spec = source.spec;
  const BatchShapeBT batch = source.batch;
  const std::int64_t rows = batch.rows();
  if (id == AttentionForward::id) {
    return {{"attention", [=](OpMemory& memory) {
               auto op = attention_shape<AttentionForward>(spec, batch);
               op.qkv = memory.values(rows * spec.qkv_width(), spec.dtype);
               op.out = memory.values(rows * spec.attention_width(), spec.dtype);
               op.lse = memory.floats(rows * spec.heads);
               return OpCall(op);
             }}};
  }
  return {{"attention", [=](OpMemory& memory) {
             auto op = attention_shape<AttentionBackward>(spec, batch);
             op.qkv = memory.values(rows * spec.qkv_width(), spec.dtype);
             op.out = memory.values(rows * spec.attention_width(), spec.dtype);
             op.dout = memory.values(rows * spec.attention_width(), spec.dtype);
             op.lse = memory.positive_floats(rows * spec.heads);
             op.delta = memory.floats(rows * spec.heads);
             op.dqkv = memory.values(rows * spec.qkv_width(), spec.dtype);
             return OpCall(op);
           }}};
}

template <typename Gelu>
Samples gelu(const SampleSource& source) {
  if (source.spec.activation != ActivationKind::gelu) return {};
  const std::int64_t count = source.batch.rows() * source.spec.feed_forward;
  const DType dtype = source.spec.dtype;
  return {{"feed-forward", [=](OpMemory& memory) {
             Gelu op;
             op.x = memory.values(count, dtype);
             if constexpr (requires { op.dy; }) {
               op.dy = memory.values(count, dtype);
               op.dx = memory.values(count, dtype);
             } else {
               op.y = memory.values(count, dtype);
             }
             op.count = count;
             op.dtype = dtype;
             return OpCall(op);
           }}};
}

template <typename Swiglu>
Samples swiglu(const SampleSource& source) {
  if (source.spec.activation != ActivationKind::swiglu) return {};
  const std::int64_t rows = source.batch.rows(), feed_forward = source.spec.feed_forward;
  const DType dtype = source.spec.dtype;
  return {{"feed-forward", [=](OpMemory& memory) {
             Swiglu op;
             op.x = memory.values(2 * rows * feed_forward, dtype);
             if constexpr (requires { op.dy; }) {
               op.dy = memory.values(rows * feed_forward, dtype);
               op.dx = memory.values(2 * rows * feed_forward, dtype);
             } else {
               op.y = memory.values(rows * feed_forward, dtype);
             }
             op.rows = rows;
             op.feed_forward = feed_forward;
             op.dtype = dtype;
             return OpCall(op);
           }}};
}

Samples cross_entropy(const SampleSource& source) {
  const ModelSpec spec = source.spec;
  const std::int64_t rows = source.rows_of_head;
  return {{"head", [=](OpMemory& memory) {
             return OpCall(CrossEntropy{.logits = memory.values(rows * spec.padded_vocabulary, spec.dtype),
                                        .targets = memory.tokens(rows, spec.vocabulary),
                                        .losses = memory.floats(rows),
                                        .rows = rows,
                                        .row_stride = spec.padded_vocabulary,
                                        .vocabulary = spec.vocabulary,
                                        .gradient_scale = 1.0F / static_cast<float>(rows),
                                        .dtype = spec.dtype});
           }}};
}

// Of a model whose tensors are split: the samples of ops that only such a model calls.
constexpr std::int64_t sample_slices = 4;

Samples cross_entropy_slices(OpId id, const SampleSource& source) {
  const std::int64_t rows = source.rows_of_head, columns = source.spec.padded_vocabulary / sample_slices;
  const std::int64_t vocabulary = source.spec.vocabulary;
  const DType dtype = source.spec.dtype;
  const auto statistics = [](OpMemory& memory, std::int64_t count) {
    return reinterpret_cast<SoftmaxStatistics*>(memory.positive_floats(3 * count));
  };
  return {{"slice of the head", [=](OpMemory& memory) {
             const std::int32_t* targets = memory.tokens(rows, vocabulary);
             if (id == CrossEntropyJoin::id) {
               return OpCall(CrossEntropyJoin{.slices = statistics(memory, sample_slices * rows),
                                              .targets = targets,
                                              .losses = memory.floats(rows),
                                              .statistics = statistics(memory, rows),
                                              .rows = rows,
                                              .slice_count = sample_slices});
             }
             if (id == CrossEntropySlice::id) {
               return OpCall(CrossEntropySlice{.logits = memory.values(rows * columns, dtype),
                                               .targets = targets,
                                               .statistics = statistics(memory, rows),
                                               .rows = rows,
                                               .row_stride = columns,
                                               .columns = columns,
                                               .dtype = dtype});
             }
             return OpCall(CrossEntropyGradient{.logits = memory.values(rows * columns, dtype),
                                                .targets = targets,
                                                .statistics = statistics(memory, rows),
                                                .rows = rows,
                                                .row_stride = columns,
                                                .columns = columns,
                                                .gradient_scale = 1.0F / static_cast<float>(rows),
                                                .dtype = dtype});
           }}};
}

Samples tree_sum(const SampleSource& source) {
  const ModelSpec spec = source.spec;
  const std::int64_t rows = source.batch.rows();
  return {{"attention output", [=](OpMemory& memory) {
             TreeSum op{.part_count = sample_slices,
                        .bias = spec.biases ? memory.values(spec.width, spec.dtype) : nullptr,
                        .y = memory.values(rows * spec.width, spec.dtype),
                        .rows = rows,
                        .columns = spec.width,
                        .dtype = spec.dtype};
             for (std::size_t i = 0; i < sample_slices; ++i) op.parts[i] = memory.floats(rows * spec.width);
             return OpCall(op);
           }}};
}

Samples loss_sum(const SampleSource& source) {
  const std::int64_t rows = source.batch.rows();
  return {{"head", [=](OpMemory& memory) {
             return OpCall(LossSum{.values = memory.floats(rows), .count = rows, .sum = memory.doubles(1)});
           }}};
}

// What goes through parameters has the sizes of the model's tensors; batches do not matter.
Samples over_parameters(OpId id, const SampleSource& source) {
  const auto sample = [id, dtype = source.spec.dtype](const char* name, std::int64_t count) {
    return OpSample{
        name, [=](OpMemory& memory) {
          const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
          constexpr auto block = static_cast<std::int64_t>(block_elements);
          const std::int64_t blocks = (count + block - 1) / block;
          if (id == AdamW::id) {
            const bool bf16 = dtype == DType::bf16;
            const AdamWTensor tensor{.weight = memory.floats(count),
                                     .moment1 = memory.floats(count),
                                     .moment2 = memory.positive_floats(count),
                                     .gradient = memory.floats(count),
                                     .copy = bf16 ? memory.bfloat16s(count) : nullptr,
                                     .count = count,
                                     .weight_decay = 0.1F};
            return OpCall(AdamW{.tensors = memory.table({tensor}),
                                .tensor_count = 1,
                                .block_count = blocks,
                                .learning_rate = 1e-4F,
                                .beta1 = 0.9F,
                                .beta2 = 0.95F,
                                .epsilon = 1e-8F});
          }
          if (id == SquareSum::id) {
            return OpCall(
                SquareSum{.values = memory.floats(count), .count = count, .sums = memory.doubles(blocks)});
          }
          if (id == Accumulate::id) {
            return OpCall(
                Accumulate{.target = memory.floats(count), .source = memory.floats(count), .count = count});
          }
          if (id == Cast::id) {
            return OpCall(
                Cast{.source = memory.floats(count), .target = memory.bfloat16s(count), .count = count});
          }
          if (id == Copy::id) {
            return OpCall(
                Copy{.source = memory.floats(count), .target = memory.floats(count), .bytes = bytes});
          }
          return OpCall(FillZero{.target = memory.floats(count), .bytes = bytes});
        }};
  };
  const ModelSpec& spec = source.spec;
  return {sample("a norm's weights", spec.width), sample("attention output", spec.width * spec.width),
          sample("up", spec.up_width() * spec.width),
          sample("embedding", spec.padded_vocabulary * spec.width)};
}

Samples add(const SampleSource& source) {
  const std::int64_t count = source.batch.rows() * source.spec.width;
  const DType dtype = source.spec.dtype;
  return {{"residual", [=](OpMemory& memory) {
             return OpCall(Add{.a = memory.values(count, dtype),
                               .b = memory.values(count, dtype),
                               .y = memory.values(count, dtype),
                               .count = count,
                               .dtype = dtype});
           }}};
}

Samples samples_of(OpId id, const SampleSource& source) {
  const bool layer_norm = source.spec.norm == NormKind::layer_norm;
  switch (id) {
    case Matmul::id:
      return matmuls(source);
    case BiasGradient::id:
      return bias_gradients(source);
    case EmbeddingForward::id:
    case EmbeddingBackward::id:
      return embeddings(id, source);
    case LayerNormForward::id:
      return layer_norm ? norm_forward<LayerNormForward>(source) : Samples{};
    case LayerNormBackward::id:
      return layer_norm ? norm_backward<LayerNormBackward>(source) : Samples{};
    case RmsNormForward::id:
      return layer_norm ? Samples{} : norm_forward<RmsNormForward>(source);
    case RmsNormBackward::id:
      return layer_norm ? Samples{} : norm_backward<RmsNormBackward>(source);
    case Rotary::id:
      return rotary(source);
    case AttentionForward::id:
    case AttentionBackward::id:
      return attention(id, source);
    case GeluForward::id:
      return gelu<GeluForward>(source);
    case GeluBackward::id:
      return gelu<GeluBackward>(source);
    case SwigluForward::id:
      return swiglu<SwigluForward>(source);
    case SwigluBackward::id:
      return swiglu<SwigluBackward>(source);
    case CrossEntropy::id:
      return cross_entropy(source);
    case CrossEntropySlice::id:
    case CrossEntropyJoin::id:
    case CrossEntropyGradient::id:
      return cross_entropy_slices(id, source);
    case LossSum::id:
      return loss_sum(source);
    case AdamW::id:
    case SquareSum::id:
    case Accumulate::id:
    case Cast::id:
    case FillZero::id:
    case Copy::id:
      return over_parameters(id, source);
    case Add::id:
      return add(source);
    case TreeSum::id:
      return tree_sum(source);
    case OpId::count:
      break;
  }
  return {};
}

SampleSource source_of(std::string_view preset, BatchShapeBT batch, DType dtype) {
  constexpr std::int64_t head_rows = 256;  // the fewest that a chunk of the head has
  return {.name = fmt::format("{} {}x{}", preset, batch.batch, batch.sequence_length),
          .spec = preset_spec(preset, dtype, batch.sequence_length).value(),
          .batch = batch,
          .rows_of_head = std::min(head_rows, batch.rows())};
}

}  // namespace

void OpCall::launch(Device& device) const {
  visit_op(id_, arguments(), [&](const auto& op) { device.launch(op); });
}

Result<ModelSpec> preset_spec(std::string_view preset, DType dtype, std::int64_t sequence_length) {
  std::vector<std::string_view> names;
  for (const ModelPreset& each : model_presets()) names.push_back(each.name);
  const ModelPreset* found = find_preset(preset);
  if (found == nullptr) {
    return fail(ExitCode::config, "there is no preset {}; there are {}", preset, fmt::join(names, ", "));
  }
  Config config;
  config.model = found->model;
  config.training.sequence_length = sequence_length;
  config.training.precision = dtype == DType::bf16 ? "bf16" : "fp32";
  return make_model_spec(config);
}

std::vector<OpSample> op_samples(OpId id, const SampleSource& source) {
  std::vector<OpSample> samples = samples_of(id, source);
  for (OpSample& sample : samples) sample.use = fmt::format("{}, {}", source.name, sample.use);
  return samples;
}

std::vector<SampleSource> sample_sources(OpId id, DType dtype) {
  std::vector<BatchShapeBT> batches = {{.batch = 4, .sequence_length = 64},
                                       {.batch = 1, .sequence_length = 1024}};
  const OpClass op_class = class_of(id);
  const bool by_memory = op_class == OpClass::norm || op_class == OpClass::activation ||
                         op_class == OpClass::residual || op_class == OpClass::bias_gradient;
  if (by_memory) batches.push_back({.batch = 16, .sequence_length = 1024});
  std::vector<SampleSource> sources;
  for (const std::string_view preset : {"gpt2-124m", "llama-15m", "llama-110m"}) {
    for (const BatchShapeBT& batch : batches) sources.push_back(source_of(preset, batch, dtype));
  }
  return sources;
}

}  // namespace holdfast
