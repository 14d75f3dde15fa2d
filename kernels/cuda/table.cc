// The CUDA kernels, for the registry (kernels/registry.h).
#include "kernels/cuda/table.h"

#include <vector>

#include "kernels/cuda/lists.h"
#include "kernels/cuda/matmul_cache.h"
#include "kernels/cuda/ops.h"

namespace holdfast::kernels::cuda {

namespace {

using Function = void (*)(Context& context, const void* arguments);

constexpr Implementation kernel(OpId op, Function run, Function prepare = nullptr) {
  Implementation result;
  result.op = op;
  result.name = "cuda";
  result.what = "own kernel (kernels/cuda)";
  result.cuda_prepare = prepare;
  result.cuda_run = run;
  return result;
}

// Marks a kernel that rounds the same operations in the same order as the CPU's.
constexpr Implementation with_bits_of_cpu(Implementation implementation) {
  implementation.same_bits_as_portable = true;
  return implementation;
}

// Describes a kernel for bf16 that uses tensor cores.
constexpr Implementation mma_kernel(OpId op, Function run, bool (*supports)(const void* arguments)) {
  Implementation result = kernel(op, run);
  result.name = "cuda_mma";
  result.what = "own kernel by tensor cores, probabilities rounded to bf16 (kernels/cuda)";
  result.preference = 1;
  result.bf16_only = true;
  result.supports = supports;
  return result;
}

constexpr Implementation cublaslt_matmul() {
  Implementation result = kernel(OpId::matmul, run_cublaslt_matmul, prepare_cublaslt_matmul);
  result.name = "cublaslt";
  result.what = "one algorithm per shape by cuBLASLt; the own kernel where it has none";
  result.library = matmul_library;
  return result;
}

constexpr Implementation implementations[] = {
    cublaslt_matmul(),
    kernel(OpId::matmul, run_matmul),
    kernel(OpId::bias_gradient, run_bias_gradient, prepare_bias_gradient),
    with_bits_of_cpu(kernel(OpId::embedding_forward, run_embedding_forward)),
    with_bits_of_cpu(kernel(OpId::embedding_backward, run_embedding_backward, prepare_embedding_backward)),
    kernel(OpId::layernorm_forward, run_layernorm_forward),
    kernel(OpId::layernorm_backward, run_layernorm_backward, prepare_layernorm_backward),
    kernel(OpId::rmsnorm_forward, run_rmsnorm_forward),
    kernel(OpId::rmsnorm_backward, run_rmsnorm_backward, prepare_rmsnorm_backward),
    with_bits_of_cpu(kernel(OpId::rotary, run_rotary)),
    kernel(OpId::attention_forward, run_attention_forward),
    mma_kernel(OpId::attention_forward, run_attention_forward_mma, supports_attention_forward_mma),
    kernel(OpId::attention_backward, run_attention_backward),
    mma_kernel(OpId::attention_backward, run_attention_backward_mma, supports_attention_backward_mma),
    kernel(OpId::gelu_forward, run_gelu_forward),
    kernel(OpId::gelu_backward, run_gelu_backward),
    kernel(OpId::swiglu_forward, run_swiglu_forward),
    kernel(OpId::swiglu_backward, run_swiglu_backward),
    kernel(OpId::cross_entropy, run_cross_entropy),
    kernel(OpId::cross_entropy_slice, run_cross_entropy_slice),
    kernel(OpId::cross_entropy_join, run_cross_entropy_join),
    kernel(OpId::cross_entropy_gradient, run_cross_entropy_gradient),
    kernel(OpId::loss_sum, run_loss_sum),
    with_bits_of_cpu(kernel(OpId::adamw, run_adamw)),
    with_bits_of_cpu(kernel(OpId::square_sum, run_square_sum)),
    with_bits_of_cpu(kernel(OpId::add, run_add)),
    with_bits_of_cpu(kernel(OpId::accumulate, run_accumulate)),
    with_bits_of_cpu(kernel(OpId::tree_sum, run_tree_sum)),
    with_bits_of_cpu(kernel(OpId::cast, run_cast)),
    with_bits_of_cpu(kernel(OpId::fill_zero, run_fill_zero)),
    with_bits_of_cpu(kernel(OpId::copy, run_copy)),
    with_bits_of_cpu(kernel(OpId::digest, run_digest, prepare_digest)),
    with_bits_of_cpu(kernel(OpId::optimizer_digest, run_optimizer_digest)),
};

std::vector<ImplementationList> all_lists() {
  std::vector<ImplementationList> lists = {
      {"kernels/cuda/table.cc", implementations, std::size(implementations)}};
  for (const ImplementationList* list : custom_lists()) lists.push_back(*list);
  return lists;
}

}  // namespace

const KernelRegistry& registry() {
  static const std::vector<ImplementationList> lists = all_lists();
  static const KernelRegistry kernels(lists);
  return kernels;
}

}  // namespace holdfast::kernels::cuda
