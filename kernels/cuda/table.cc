// The CUDA kernels, for the registry (kernels/registry.h).
#include "kernels/cuda/table.h"

#include "kernels/cuda/ops.h"

namespace holdfast::cuda {

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

constexpr Implementation implementations[] = {
    kernel(OpId::gelu_forward, run_gelu_forward),
    kernel(OpId::gelu_backward, run_gelu_backward),
};

}  // namespace

const KernelRegistry& registry() {
  static constexpr ImplementationList list = {"kernels/cuda/table.cc", implementations,
                                              std::size(implementations)};
  static const KernelRegistry kernels(std::span(&list, 1));
  return kernels;
}

}  // namespace holdfast::cuda
