// Tells which arguments the implementations of more than one instruction set support. They share these
// functions, compiled for every processor: so the registry sees that one of them never gets arguments that an
// earlier one in the order does not support.
#pragma once

namespace holdfast::kernels::cpu {

bool supports_bf16_matmul(const void* arguments);              // const Matmul*
bool supports_bf16_attention_forward(const void* arguments);   // const AttentionForward*
bool supports_bf16_attention_backward(const void* arguments);  // const AttentionBackward*

}  // namespace holdfast::kernels::cpu
