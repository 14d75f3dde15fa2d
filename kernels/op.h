// Lists every operation of a device. An op is a plain struct of pointers, shapes and dtypes (its contract
// header documents them); a device holds a table from OpId to an implementation (kernels/registry.h). Model
// code names ops, never devices.
#pragma once

#include <cstddef>
#include <cstdint>

namespace holdfast::kernels {

// Lists the ops in the order of tables. The names are those that users write: [kernels] rmsnorm_forward =
// "avx2".
#define HF_OPS(X)           \
  X(matmul)                 \
  X(bias_gradient)          \
  X(embedding_forward)      \
  X(embedding_backward)     \
  X(layernorm_forward)      \
  X(layernorm_backward)     \
  X(rmsnorm_forward)        \
  X(rmsnorm_backward)       \
  X(rotary)                 \
  X(attention_forward)      \
  X(attention_backward)     \
  X(gelu_forward)           \
  X(gelu_backward)          \
  X(swiglu_forward)         \
  X(swiglu_backward)        \
  X(cross_entropy)          \
  X(cross_entropy_slice)    \
  X(cross_entropy_join)     \
  X(cross_entropy_gradient) \
  X(loss_sum)               \
  X(adamw)                  \
  X(square_sum)             \
  X(add)                    \
  X(accumulate)             \
  X(tree_sum)               \
  X(cast)                   \
  X(fill_zero)              \
  X(copy)                   \
  X(digest)                 \
  X(optimizer_digest)

enum class OpId : std::uint16_t {
#define HF_OP_ID(op) op,
  HF_OPS(HF_OP_ID)
#undef HF_OP_ID
      count
};

inline constexpr std::size_t op_count = static_cast<std::size_t>(OpId::count);
inline constexpr const char* op_names[op_count] = {
#define HF_OP_NAME(op) #op,
    HF_OPS(HF_OP_NAME)
#undef HF_OP_NAME
};

const char* name_of(OpId id);

inline constexpr std::size_t op_bytes_max = 192;  // largest argument struct; queues hold arguments by value

}  // namespace holdfast::kernels
