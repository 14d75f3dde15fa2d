// Declares every CPU kernel, once per instruction set. Files in this folder are compiled three times (HF_ISA
// = portable, avx2, avx512). Their inline functions and templates must be in namespace HF_ISA or anonymous:
// the linker may keep any one copy of an inline function, and a copy with wider instructions would crash an
// older processor. So there are no std:: algorithms and no formatted HF_CHECK here either.
#pragma once

#include "kernels/cpu/context.h"
#include "kernels/op.h"

namespace holdfast::kernels::cpu::HF_ISA {

#define HF_DECLARE_RUN(op, contract, op_class) void run_##op(const Context& context, const void* arguments);
HF_OPS(HF_DECLARE_RUN)
#undef HF_DECLARE_RUN
void run_onednn_matmul(const Context& context, const void* arguments);

// These read shapes alone.
void prepare_matmul(const Context& context, const void* arguments);
void prepare_onednn_matmul(const Context& context, const void* arguments);
void prepare_layernorm_backward(const Context& context, const void* arguments);
void prepare_rmsnorm_backward(const Context& context, const void* arguments);
void prepare_attention_forward(const Context& context, const void* arguments);
void prepare_attention_backward(const Context& context, const void* arguments);
void prepare_cross_entropy(const Context& context, const void* arguments);

}  // namespace holdfast::kernels::cpu::HF_ISA
