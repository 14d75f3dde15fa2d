// The CUDA kernels, for the registry (kernels/registry.h).
#include "kernels/cuda/table.h"

#include <vector>

#include "kernels/composed.h"
#include "kernels/cuda/lists.h"
#include "kernels/cuda/matmul_cache.h"
#include "kernels/cuda/ops.h"
#include "kernels/visit_op.h"

namespace holdfast::kernels::cuda {

namespace {

using Function = void (*)(Context& context, const void* arguments);

constexpr Function prepare_of(OpId op) {
  switch (op) {
    case OpId::bias_gradient:
      return prepare_bias_gradient;
    case OpId::embedding_backward:
      return prepare_embedding_backward;
    case OpId::layernorm_backward:
      return prepare_layernorm_backward;
    case OpId::rmsnorm_backward:
      return prepare_rmsnorm_backward;
    case OpId::digest:
      return prepare_digest;
    default:
      return nullptr;
  }
}

consteval Function run_of(OpId op) {
#define HF_RUN_OF(op, contract, op_class) \
  case OpId::op:                          \
    return run_##op;
  switch (op) {
    HF_OPS(HF_RUN_OF)
    case OpId::count:
      break;
  }
#undef HF_RUN_OF
  return nullptr;
}

template <ComposedOp Op>
void run_parts(Context& context, const void* arguments) {
  Op::visit_parts(*static_cast<const Op*>(arguments), [&context]<typename Part>(const Part& part) {
    constexpr Function run = run_of(Part::id);
    run(context, &part);
  });
}

template <ComposedOp Op>
void prepare_parts(Context& context, const void* arguments) {
  Op::visit_parts(*static_cast<const Op*>(arguments), [&context]<typename Part>(const Part& part) {
    constexpr Function prepare = prepare_of(Part::id);
    if constexpr (prepare != nullptr) prepare(context, &part);
  });
}

// A contract says has_bits_of_cpu where the kernel rounds the same operations in the same order as the CPU's.
template <typename Op>
constexpr Implementation kernel(Function run) {
  Implementation result;
  result.op = Op::id;
  result.name = "cuda";
  result.what = "own kernel (kernels/cuda)";
  result.same_bits_as_portable = requires {
    Op::has_bits_of_cpu;
  };
  result.cuda_prepare = prepare_of(Op::id);
  result.cuda_run = run;
  if constexpr (ComposedOp<Op>) {
    result.what = "the own kernels of its parts, one after the other";
    result.cuda_prepare = prepare_parts<Op>;
    result.cuda_run = run_parts<Op>;
  }
  return result;
}

// Describes a kernel for bf16 that uses tensor cores.
template <typename Op>
constexpr Implementation mma_kernel(Function run, bool (*supports)(const void* arguments)) {
  Implementation result = kernel<Op>(run);
  result.name = "cuda_mma";
  result.what = "own kernel by tensor cores, probabilities rounded to bf16 (kernels/cuda)";
  result.preference = 1;
  result.bf16_only = true;
  result.supports = supports;
  return result;
}

// Describes attention by tensor cores that no GPU has run, so none chooses it. `needs_gpu`: 0 = any.
template <typename Op>
constexpr Implementation asked_for_kernel(Function run, bool (*supports)(const void* arguments),
                                          Function prepare, int needs_gpu, const char* name,
                                          const char* what) {
  Implementation result = mma_kernel<Op>(run, supports);
  result.name = name;
  result.what = what;
  result.preference = -1;
  result.needs_gpu = needs_gpu;
  result.cuda_prepare = prepare;
  return result;
}
constexpr Implementation mma5_kernel(Function run, const char* name, const char* what) {
  return asked_for_kernel<AttentionBackward>(run, supports_attention_backward_mma,
                                             prepare_attention_backward_mma5, 0, name, what);
}
#ifdef HF_CUDA_SM_90A
constexpr Implementation wgmma_forward() {
  return asked_for_kernel<AttentionForward>(
      run_attention_forward_wgmma, supports_attention_forward_mma, nullptr, 90, "cuda_wgmma",
      "as cuda_mma by the instructions of compute capability 9.0: wgmma, tensor copies");
}
constexpr Implementation wgmma_backward(Function run, const char* name, const char* what) {
  return asked_for_kernel<AttentionBackward>(run, supports_attention_backward_mma,
                                             prepare_attention_backward_wgmma, 90, name, what);
}
#endif

constexpr Implementation cublaslt_matmul() {
  Implementation result = kernel<Matmul>(run_cublaslt_matmul);
  result.name = "cublaslt";
  result.what = "one algorithm per shape by cuBLASLt; the own kernel where it has none";
  result.library = matmul_library;
  result.cuda_prepare = prepare_cublaslt_matmul;
  return result;
}

// Lists the kernels in order: of those with equal preference, the first is chosen.
#define HF_KERNEL(op, contract, op_class) kernel<contract>(run_##op),
constexpr Implementation implementations[] = {
    cublaslt_matmul(),
    HF_OPS(HF_KERNEL) mma_kernel<AttentionForward>(run_attention_forward_mma, supports_attention_forward_mma),
    mma_kernel<AttentionBackward>(run_attention_backward_mma, supports_attention_backward_mma),
#ifdef HF_CUDA_SM_90A
    wgmma_forward(),
    wgmma_backward(run_attention_backward_wgmma, "cuda_wgmma",
                   "as cuda_mma5 by the instructions of compute capability 9.0: wgmma, tensor copies"),
    wgmma_backward(run_attention_backward_wgmma_tiles, "cuda_wgmma_tiles",
                   "the bits of cuda_wgmma; a block for each tile of keys, which waits for the next one"),
#endif
    mma5_kernel(run_attention_backward_mma5, "cuda_mma5",
                "as cuda_mma in one pass, 5 products of tiles instead of 7; a block for each key head"),
    mma5_kernel(run_attention_backward_mma5_tiles, "cuda_mma5_tiles",
                "the bits of cuda_mma5; a block for each tile of keys, which waits for the next one")};

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
