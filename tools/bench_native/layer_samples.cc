#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "kernels/visit_op.h"
#include "tools/bench_native/op_samples.h"

namespace holdfast::bench {
namespace {

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

// Works in place over the gradient that flows around the norm, as in a block.
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

// Sequences that are full of documents, of these multiples of `unit`, one behind the other; the last is cut.
struct Documents {
  std::vector<std::int32_t> first_key;  // of a sequence; empty: it is one document
  double pairs_share = 1.0;             // of the pairs of query and key that causality leaves

  Documents(std::int64_t unit, std::int64_t sequence_length) {
    if (unit == 0) return;
    constexpr std::array<std::int64_t, 5> multiples = {2, 6, 1, 4, 3};
    std::int64_t begin = 0, pairs = 0;
    for (std::size_t document = 0; begin < sequence_length; ++document) {
      const std::int64_t length =
          std::min(multiples[document % multiples.size()] * unit, sequence_length - begin);
      first_key.insert(first_key.end(), static_cast<std::size_t>(length), static_cast<std::int32_t>(begin));
      pairs += length * (length + 1) / 2;
      begin += length;
    }
    pairs_share =
        static_cast<double>(pairs) / static_cast<double>(sequence_length * (sequence_length + 1) / 2);
  }

  const std::int32_t* table(OpMemory& memory, std::int64_t batch) const {
    if (first_key.empty()) return nullptr;
    std::vector<std::int32_t> all;
    for (std::int64_t i = 0; i < batch; ++i) all.insert(all.end(), first_key.begin(), first_key.end());
    return memory.integers(all);
  }
};

Samples attention(OpId id, const SampleSource& source) {
  const ModelSpec spec = source.spec;
  const BatchShapeBT batch = source.batch;
  const std::int64_t rows = batch.rows();
  const Documents documents(source.document_unit, batch.sequence_length);
  OpSample sample{.use = "attention",
                  .make = {},
                  .variant = documents.first_key.empty() ? "" : " in documents",
                  .flops_share = documents.pairs_share};
  if (id == AttentionForward::id) {
    sample.make = [=](OpMemory& memory) {
      auto op = attention_shape<AttentionForward>(spec, batch);
      op.qkv = memory.values(rows * spec.qkv_width(), spec.dtype);
      op.first_key = documents.table(memory, batch.batch);
      op.out = memory.values(rows * spec.attention_width(), spec.dtype);
      op.lse = memory.floats(rows * spec.heads);
      return OpCall(op);
    };
  } else {
    sample.make = [=](OpMemory& memory) {
      auto op = attention_shape<AttentionBackward>(spec, batch);
      op.qkv = memory.values(rows * spec.qkv_width(), spec.dtype);
      op.first_key = documents.table(memory, batch.batch);
      op.out = memory.values(rows * spec.attention_width(), spec.dtype);
      op.dout = memory.values(rows * spec.attention_width(), spec.dtype);
      op.lse = memory.positive_floats(rows * spec.heads);
      op.delta = memory.floats(rows * spec.heads);
      op.dqkv = memory.values(rows * spec.qkv_width(), spec.dtype);
      return OpCall(op);
    };
  }
  return {sample};
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

}  // namespace

Samples layer_samples(OpId id, const SampleSource& source) {
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
    case Add::id:
      return add(source);
    default:
      return {};
  }
}

}  // namespace holdfast::bench
