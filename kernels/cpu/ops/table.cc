// The kernels of one instruction set, for the registry (kernels/registry.h).
#include "kernels/cpu/lists.h"
#include "kernels/cpu/matmul_cache.h"
#include "kernels/cpu/ops/ops.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

#define HF_QUOTED_(name) #name
#define HF_QUOTED(name) HF_QUOTED_(name)

using Function = void (*)(const Context& context, const void* arguments);

constexpr Implementation kernel(OpId op, Function run, Function prepare = nullptr) {
  Implementation result;
  result.op = op;
  result.name = HF_QUOTED(HF_ISA);
  result.what = "own kernel on vectors of sixteen (kernels/cpu/simd.h), compiled for " HF_QUOTED(HF_ISA);
  result.needs = CpuIsa::HF_ISA;
  result.same_bits_as_portable = true;
  result.prepare = prepare;
  result.run = run;
  return result;
}

// The portable build has a lower preference: without an fma instruction, oneDNN is many times as fast.
constexpr Implementation gemm() {
  Implementation result = kernel(OpId::matmul, run_gemm, prepare_gemm);
  result.what = "own blocks and tiles (kernels/cpu/gemm), compiled for " HF_QUOTED(HF_ISA);
  if (result.needs == CpuIsa::portable) result.preference = -1;
  return result;
}

constexpr Implementation onednn_matmul() {
  Implementation result = kernel(OpId::matmul, run_onednn_matmul, prepare_onednn_matmul);
  result.name = "onednn";
  result.what = "tiles of one thread each, which follow from the shape, by oneDNN";
  result.same_bits_as_portable = false;
  result.library = matmul_library;
  return result;
}

constexpr Implementation implementations[] = {
    gemm(),
    onednn_matmul(),
    kernel(OpId::bias_gradient, run_bias_gradient),
    kernel(OpId::embedding_forward, run_embedding_forward),
    kernel(OpId::embedding_backward, run_embedding_backward),
    kernel(OpId::layernorm_forward, run_layernorm_forward),
    kernel(OpId::layernorm_backward, run_layernorm_backward, prepare_layernorm_backward),
    kernel(OpId::rmsnorm_forward, run_rmsnorm_forward),
    kernel(OpId::rmsnorm_backward, run_rmsnorm_backward, prepare_rmsnorm_backward),
    kernel(OpId::rotary, run_rotary),
    kernel(OpId::attention_forward, run_attention_forward, prepare_attention_forward),
    kernel(OpId::attention_backward, run_attention_backward, prepare_attention_backward),
    kernel(OpId::gelu_forward, run_gelu_forward),
    kernel(OpId::gelu_backward, run_gelu_backward),
    kernel(OpId::swiglu_forward, run_swiglu_forward),
    kernel(OpId::swiglu_backward, run_swiglu_backward),
    kernel(OpId::cross_entropy, run_cross_entropy, prepare_cross_entropy),
    kernel(OpId::cross_entropy_slice, run_cross_entropy_slice),
    kernel(OpId::cross_entropy_join, run_cross_entropy_join),
    kernel(OpId::cross_entropy_gradient, run_cross_entropy_gradient),
    kernel(OpId::loss_sum, run_loss_sum),
    kernel(OpId::adamw, run_adamw),
    kernel(OpId::square_sum, run_square_sum),
    kernel(OpId::add, run_add),
    kernel(OpId::accumulate, run_accumulate),
    kernel(OpId::tree_sum, run_tree_sum),
    kernel(OpId::cast, run_cast),
    kernel(OpId::fill_zero, run_fill_zero),
    kernel(OpId::copy, run_copy),
    kernel(OpId::digest, run_digest),
    kernel(OpId::optimizer_digest, run_optimizer_digest),
};

}  // namespace

constinit const ImplementationList table_list = {"kernels/cpu/ops/table.cc", implementations,
                                                 sizeof(implementations) / sizeof(Implementation)};

}  // namespace holdfast::kernels::cpu::HF_ISA
