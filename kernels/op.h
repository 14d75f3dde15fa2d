// Lists every operation of a device. An op is a plain struct of pointers, shapes and dtypes (its contract
// header documents them); a device holds a table from OpId to an implementation (kernels/registry.h). Model
// code names ops, never devices.
#pragma once

#include <cstddef>
#include <cstdint>

namespace holdfast::kernels {

// Lists the parts of a step in the order of tables, with their names for people.
#define HF_OP_CLASSES(X)             \
  X(matmul, "matrix products")       \
  X(attention, "attention")          \
  X(norm, "norms")                   \
  X(activation, "activations")       \
  X(residual, "residual")            \
  X(embedding, "embedding")          \
  X(cross_entropy, "cross-entropy")  \
  X(bias_gradient, "bias gradients") \
  X(optimizer, "optimizer")          \
  X(copy, "gradient sums, copies, fills")

enum class OpClass : std::uint8_t {
#define HF_OP_CLASS(op_class, name) op_class,
  HF_OP_CLASSES(HF_OP_CLASS)
#undef HF_OP_CLASS
      count
};
inline constexpr int op_class_count = static_cast<int>(OpClass::count);

// Lists the ops in the order of tables: name, contract and part of a step. The names are those that users write:
// [kernels] rmsnorm_forward = "avx2".
#define HF_OPS(X)                                                \
  X(matmul, Matmul, matmul)                                      \
  X(bias_gradient, BiasGradient, bias_gradient)                  \
  X(embedding_forward, EmbeddingForward, embedding)              \
  X(embedding_backward, EmbeddingBackward, embedding)            \
  X(layernorm_forward, LayerNormForward, norm)                   \
  X(layernorm_backward, LayerNormBackward, norm)                 \
  X(rmsnorm_forward, RmsNormForward, norm)                       \
  X(rmsnorm_backward, RmsNormBackward, norm)                     \
  X(residual_rmsnorm, ResidualRmsNorm, norm)                     \
  X(residual_layernorm, ResidualLayerNorm, norm)                 \
  X(rotary, Rotary, attention)                                   \
  X(attention_forward, AttentionForward, attention)              \
  X(attention_backward, AttentionBackward, attention)            \
  X(gelu_forward, GeluForward, activation)                       \
  X(swiglu_forward, SwigluForward, activation)                   \
  X(swiglu_backward, SwigluBackward, activation)                 \
  X(cross_entropy, CrossEntropy, cross_entropy)                  \
  X(cross_entropy_slice, CrossEntropySlice, cross_entropy)       \
  X(cross_entropy_join, CrossEntropyJoin, cross_entropy)         \
  X(cross_entropy_gradient, CrossEntropyGradient, cross_entropy) \
  X(loss_sum, LossSum, cross_entropy)                            \
  X(adamw, AdamW, optimizer)                                     \
  X(lion, Lion, optimizer)                                       \
  X(square_sum, SquareSum, optimizer)                            \
  X(add, Add, residual)                                          \
  X(accumulate, Accumulate, copy)                                \
  X(tree_sum, TreeSum, residual)                                 \
  X(cast, Cast, optimizer)                                       \
  X(fill_zero, FillZero, copy)                                   \
  X(copy, Copy, copy)                                            \
  X(copy_rows, CopyRows, attention)                              \
  X(digest, TensorDigest, copy)                                  \
  X(optimizer_digest, OptimizerDigest, optimizer)

enum class OpId : std::uint16_t {
#define HF_OP_ID(op, contract, op_class) op,
  HF_OPS(HF_OP_ID)
#undef HF_OP_ID
      count
};

inline constexpr std::size_t op_count = static_cast<std::size_t>(OpId::count);
inline constexpr const char* op_names[op_count] = {
#define HF_OP_NAME(op, contract, op_class) #op,
    HF_OPS(HF_OP_NAME)
#undef HF_OP_NAME
};

// Returns whether an op is others in turn (kernels/composed.h).
constexpr bool is_composed(OpId id) {
  return id == OpId::residual_layernorm || id == OpId::residual_rmsnorm;
}

const char* name_of(OpId id);
const char* name_of(OpClass op_class);
OpClass class_of(OpId id);
// Ops that go through the parameters, gradients or moments: in a step each of their calls touches memory that
// no other call of the same op touches, so what they move comes from where all of it together lives.
bool once_per_step(OpId id);

inline constexpr std::size_t op_bytes_max = 256;  // largest argument struct; queues hold arguments by value

}  // namespace holdfast::kernels
