// Declares every CPU kernel, once per instruction set. Files in this folder are compiled three times (HF_ISA
// = portable, avx2, avx512). Their inline functions and templates must be in namespace HF_ISA or anonymous:
// the linker may keep any one copy of an inline function, and a copy with wider instructions would crash an
// older processor. So there are no std:: algorithms and no formatted HF_CHECK here either.
#pragma once

#include "kernels/cpu/context.h"

namespace holdfast::kernels::cpu::HF_ISA {

#define HF_DECLARE_RUN(op) void run_##op(const Context& context, const void* arguments)
#define HF_DECLARE_PREPARE(op) void prepare_##op(const Context& context, const void* arguments)

HF_DECLARE_RUN(gemm);
HF_DECLARE_RUN(onednn_matmul);
HF_DECLARE_RUN(bias_gradient);
HF_DECLARE_RUN(embedding_forward);
HF_DECLARE_RUN(embedding_backward);
HF_DECLARE_RUN(layernorm_forward);
HF_DECLARE_RUN(layernorm_backward);
HF_DECLARE_RUN(rmsnorm_forward);
HF_DECLARE_RUN(rmsnorm_backward);
HF_DECLARE_RUN(rotary);
HF_DECLARE_RUN(attention_forward);
HF_DECLARE_RUN(attention_backward);
HF_DECLARE_RUN(gelu_forward);
HF_DECLARE_RUN(gelu_backward);
HF_DECLARE_RUN(swiglu_forward);
HF_DECLARE_RUN(swiglu_backward);
HF_DECLARE_RUN(cross_entropy);
HF_DECLARE_RUN(cross_entropy_slice);
HF_DECLARE_RUN(cross_entropy_join);
HF_DECLARE_RUN(cross_entropy_gradient);
HF_DECLARE_RUN(loss_sum);
HF_DECLARE_RUN(adamw);
HF_DECLARE_RUN(square_sum);
HF_DECLARE_RUN(add);
HF_DECLARE_RUN(accumulate);
HF_DECLARE_RUN(tree_sum);
HF_DECLARE_RUN(cast);
HF_DECLARE_RUN(fill_zero);
HF_DECLARE_RUN(copy);
HF_DECLARE_RUN(digest);
HF_DECLARE_RUN(optimizer_digest);

HF_DECLARE_PREPARE(gemm);
HF_DECLARE_PREPARE(onednn_matmul);
HF_DECLARE_PREPARE(layernorm_backward);
HF_DECLARE_PREPARE(rmsnorm_backward);
HF_DECLARE_PREPARE(attention_forward);
HF_DECLARE_PREPARE(attention_backward);
HF_DECLARE_PREPARE(cross_entropy);

#undef HF_DECLARE_RUN
#undef HF_DECLARE_PREPARE

}  // namespace holdfast::kernels::cpu::HF_ISA
