// Declares kernels that need bf16 matrix instructions. Files in this folder are compiled once per kind of
// them (HF_ISA = avx512_bf16, amx), under the rules of kernels/cpu/ops/ops.h. Their tensors are bf16.
#pragma once

#include "kernels/cpu/context.h"

namespace holdfast::kernels::cpu::HF_ISA {

void run_gemm(const Context& context, const void* arguments);
void prepare_gemm(const Context& context, const void* arguments);
void run_attention_forward(const Context& context, const void* arguments);
void prepare_attention_forward(const Context& context, const void* arguments);
void run_attention_backward(const Context& context, const void* arguments);
void prepare_attention_backward(const Context& context, const void* arguments);

}  // namespace holdfast::kernels::cpu::HF_ISA
