#include "kernels/op.h"

namespace holdfast {

const char* name_of(OpId id) {
  switch (id) {
    case OpId::matmul:
      return "matmul";
    case OpId::bias_gradient:
      return "bias_gradient";
    case OpId::embedding_forward:
      return "embedding_forward";
    case OpId::embedding_backward:
      return "embedding_backward";
    case OpId::layernorm_forward:
      return "layernorm_forward";
    case OpId::layernorm_backward:
      return "layernorm_backward";
    case OpId::rmsnorm_forward:
      return "rmsnorm_forward";
    case OpId::rmsnorm_backward:
      return "rmsnorm_backward";
    case OpId::rotary:
      return "rotary";
    case OpId::attention_forward:
      return "attention_forward";
    case OpId::attention_backward:
      return "attention_backward";
    case OpId::gelu_forward:
      return "gelu_forward";
    case OpId::gelu_backward:
      return "gelu_backward";
    case OpId::swiglu_forward:
      return "swiglu_forward";
    case OpId::swiglu_backward:
      return "swiglu_backward";
    case OpId::cross_entropy:
      return "cross_entropy";
    case OpId::loss_sum:
      return "loss_sum";
    case OpId::adamw:
      return "adamw";
    case OpId::square_sum:
      return "square_sum";
    case OpId::add:
      return "add";
    case OpId::accumulate:
      return "accumulate";
    case OpId::cast:
      return "cast";
    case OpId::fill_zero:
      return "fill_zero";
    case OpId::copy:
      return "copy";
    case OpId::count:
      break;
  }
  return "unknown";
}

}  // namespace holdfast
