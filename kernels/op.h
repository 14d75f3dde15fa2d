// Every operation a device can do. An op is a plain struct of pointers, shapes and dtypes (its contract
// header says what they mean); a device holds a table from OpId to its own implementation. Model code names
// ops, never devices.
#pragma once

#include <cstdint>

namespace holdfast {

enum class OpId : std::uint16_t {
  matmul,
  bias_gradient,
  embedding_forward,
  embedding_backward,
  layernorm_forward,
  layernorm_backward,
  rmsnorm_forward,
  rmsnorm_backward,
  rotary,
  attention_forward,
  attention_backward,
  gelu_forward,
  gelu_backward,
  swiglu_forward,
  swiglu_backward,
  cross_entropy,
  loss_sum,
  adamw,
  square_sum,
  add,
  accumulate,
  cast,
  fill_zero,
  copy,
  count
};

const char* name_of(OpId id);

inline constexpr std::size_t op_bytes_max = 192;  // largest argument struct; queues hold arguments by value

}  // namespace holdfast
