// Declares every CUDA kernel, one file per op contract. prepare_... reads shapes alone and requests
// workspace.
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/matmul.h"
#include "kernels/op.h"

namespace holdfast::kernels::cuda {

#define HF_DECLARE_RUN(op, contract, op_class) void run_##op(Context& context, const void* arguments);
HF_OPS(HF_DECLARE_RUN)
#undef HF_DECLARE_RUN

void prepare_bias_gradient(Context& context, const void* arguments);
void prepare_embedding_backward(Context& context, const void* arguments);
void prepare_layernorm_backward(Context& context, const void* arguments);
void prepare_rmsnorm_backward(Context& context, const void* arguments);
void prepare_digest(Context& context, const void* arguments);
// The next functions are for bf16 with head sizes 64 and 128, by tensor cores.
bool supports_attention_forward_mma(const void* arguments);
bool supports_attention_backward_mma(const void* arguments);
void run_attention_forward_mma(Context& context, const void* arguments);
void run_attention_backward_mma(Context& context, const void* arguments);
void prepare_attention_backward_mma5(Context& context, const void* arguments);
void run_attention_backward_mma5(Context& context, const void* arguments);
void run_attention_backward_mma5_tiles(Context& context, const void* arguments);
// Those are built for sm_90a alone.
void run_attention_forward_wgmma(Context& context, const void* arguments);
void prepare_attention_backward_wgmma(Context& context, const void* arguments);
void run_attention_backward_wgmma(Context& context, const void* arguments);
void run_attention_backward_wgmma_tiles(Context& context, const void* arguments);
// Multiplies the C of a product, in fp32 and in place, by the derivative of GELU at gelu_of.
void multiply_by_gelu_slopes(Context& context, const Matmul& op);
void prepare_cublaslt_matmul(Context& context, const void* arguments);
void run_cublaslt_matmul(Context& context, const void* arguments);

}  // namespace holdfast::kernels::cuda
