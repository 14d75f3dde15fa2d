#include "kernels/cpu/supports.h"

#include "kernels/attention.h"
#include "kernels/matmul.h"

namespace holdfast::kernels::cpu {

bool supports_bf16_matmul(const void* arguments) {
  return static_cast<const Matmul*>(arguments)->dtype == DType::bf16;
}

bool supports_bf16_attention_forward(const void* arguments) {
  const AttentionForward& op = *static_cast<const AttentionForward*>(arguments);
  return op.dtype == DType::bf16 && op.cache == nullptr;
}

bool supports_bf16_attention_backward(const void* arguments) {
  return static_cast<const AttentionBackward*>(arguments)->dtype == DType::bf16;
}

}  // namespace holdfast::kernels::cpu
