#include "runtime/measure/op_text.h"

#include <fmt/core.h>

#include "kernels/visit_op.h"

namespace holdfast::measure {
namespace {

std::string suffix(DType dtype) {
  return dtype == DType::fp32 ? "" : fmt::format(" {}", name_of(dtype));
}

std::string text(const Matmul& op) {
  const std::string types = op.dtype == op.dtype_c
                                ? suffix(op.dtype)
                                : fmt::format(" {}->{}", name_of(op.dtype), name_of(op.dtype_c));
  return fmt::format("{}x{}x{} {}{}{}{}{}", op.m, op.n, op.k, op.transpose_a ? 'T' : 'N',
                     op.transpose_b ? 'T' : 'N', op.bias != nullptr ? " bias" : "",
                     op.accumulate ? " accumulate" : "", types);
}

template <typename Attention>
std::string attention_text(const Attention& op) {
  return fmt::format("{}x{} {}/{} heads of {}{}", op.batch, op.sequence_length, op.heads, op.kv_heads,
                     op.head_size, suffix(op.dtype));
}
std::string text(const AttentionForward& op) {
  return attention_text(op);
}
std::string text(const AttentionBackward& op) {
  return attention_text(op);
}

std::string text(const Rotary& op) {
  return fmt::format("{}x{} heads of {}{}", op.rows, op.heads, op.head_size, suffix(op.dtype));
}
std::string text(const CrossEntropy& op) {
  return fmt::format("{}x{}{}", op.rows, op.vocabulary, suffix(op.dtype));
}
std::string text(const CrossEntropySlice& op) {
  return fmt::format("{}x{}{}", op.rows, op.columns, suffix(op.dtype));
}
std::string text(const CrossEntropyJoin& op) {
  return fmt::format("{} slices of {} rows", op.slice_count, op.rows);
}
std::string text(const CrossEntropyGradient& op) {
  return fmt::format("{}x{}{}", op.rows, op.columns, suffix(op.dtype));
}
std::string text(const TreeSum& op) {
  return fmt::format("{} parts of {}x{}{}{}", op.part_count, op.rows, op.columns,
                     op.bias != nullptr ? " bias" : "", suffix(op.dtype));
}
std::string text(const BiasGradient& op) {
  return fmt::format("{}x{}{}{}", op.rows, op.columns, op.accumulate ? " accumulate" : "", suffix(op.dtype));
}

template <typename Op>
std::string table_text(const Op& op) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < op.tensor_count; ++i) count += op.tensors[i].count;
  return fmt::format("{} in {} tensors", count, op.tensor_count);
}
std::string text(const AdamW& op) {
  return table_text(op);
}
std::string text(const OptimizerDigest& op) {
  return table_text(op);
}

template <typename Rows>
concept RowsOfFeedForward = requires(Rows op) {
  op.rows* op.feed_forward;
};
template <typename Rows>
concept RowsOfWidth = requires(Rows op) {
  op.rows* op.width;
};
template <typename Flat>
concept Elements = requires(Flat op) {
  op.count;
};
template <typename Raw>
concept Bytes = requires(Raw op) {
  op.bytes;
};

std::string text(const RowsOfFeedForward auto& op) {
  return fmt::format("{}x{}{}", op.rows, op.feed_forward, suffix(op.dtype));
}
std::string text(const RowsOfWidth auto& op) {
  std::string slice;
  if constexpr (requires { op.token_count; }) {
    if (op.token_count > 0) slice = fmt::format(" of {} tokens", op.token_count);
  }
  return fmt::format("{}x{}{}{}", op.rows, op.width, slice, suffix(op.dtype));
}
std::string text(const Elements auto& op) {
  if constexpr (requires { op.dtype; }) return fmt::format("{}{}", op.count, suffix(op.dtype));
  return fmt::format("{}", op.count);
}
std::string text(const Bytes auto& op) {
  return fmt::format("{} bytes", op.bytes);
}

}  // namespace

std::string shape_text(OpId id, const void* arguments) {
  return visit_op(id, arguments, [](const auto& op) { return text(op); });
}

OpClass class_of(OpId id) {
  switch (id) {
    case Matmul::id:
      return OpClass::matmul;
    case AttentionForward::id:
    case AttentionBackward::id:
    case Rotary::id:
      return OpClass::attention;
    case LayerNormForward::id:
    case LayerNormBackward::id:
    case RmsNormForward::id:
    case RmsNormBackward::id:
      return OpClass::norm;
    case GeluForward::id:
    case GeluBackward::id:
    case SwigluForward::id:
    case SwigluBackward::id:
      return OpClass::activation;
    case Add::id:
    case TreeSum::id:
      return OpClass::residual;
    case EmbeddingForward::id:
    case EmbeddingBackward::id:
      return OpClass::embedding;
    case CrossEntropy::id:
    case CrossEntropySlice::id:
    case CrossEntropyJoin::id:
    case CrossEntropyGradient::id:
    case LossSum::id:
      return OpClass::cross_entropy;
    case BiasGradient::id:
      return OpClass::bias_gradient;
    case AdamW::id:
    case OptimizerDigest::id:
    case SquareSum::id:
    case Cast::id:
      return OpClass::optimizer;
    case Accumulate::id:
    case FillZero::id:
    case Copy::id:
    case TensorDigest::id:
    case OpId::count:
      return OpClass::copy;
  }
  return OpClass::copy;
}

std::string_view name_of(OpClass op_class) {
  switch (op_class) {
    case OpClass::matmul:
      return "matrix products";
    case OpClass::attention:
      return "attention";
    case OpClass::norm:
      return "norms";
    case OpClass::activation:
      return "activations";
    case OpClass::residual:
      return "residual";
    case OpClass::embedding:
      return "embedding";
    case OpClass::cross_entropy:
      return "cross-entropy";
    case OpClass::bias_gradient:
      return "bias gradients";
    case OpClass::optimizer:
      return "optimizer";
    case OpClass::copy:
      return "gradient sums, copies, fills";
  }
  return "unknown";
}

bool once_per_step(OpId id) {
  const OpClass op_class = class_of(id);
  return op_class == OpClass::optimizer || op_class == OpClass::copy;
}

}  // namespace holdfast::measure
