// Matrix products by cuBLASLt (kernels/cuda/matmul_cache.h has the rule that chooses its algorithms).
#include "kernels/cuda/matmul_cache.h"
#include "kernels/cuda/ops.h"

namespace holdfast::kernels::cuda {

namespace {

bool is_empty(const Matmul& op) {
  return op.m == 0 || op.n == 0 || op.k == 0;
}

}  // namespace

void prepare_cublaslt_matmul(Context& context, const void* arguments) {
  const Matmul& op = *static_cast<const Matmul*>(arguments);
  check_matmul(op);
  if (is_empty(op)) return;
  context.request_workspace(context.matmuls().product(product_shape(op)).workspace_bytes());
}

// The own kernel takes what the library cannot: sums over nothing, shapes that it has no algorithm for, and
// addresses that are not as aligned as tensors are (a slice that starts at an odd column). Where tensors and
// slices start follows from the model alone, so that a run never changes between the two.
void run_cublaslt_matmul(Context& context, const void* arguments) {
  const Matmul& op = *static_cast<const Matmul*>(arguments);
  const Product* product = is_empty(op) ? nullptr : context.matmuls().find(product_shape(op));
  if (product == nullptr || !product->found() || !product->takes(op)) return run_matmul(context, arguments);
  const cublasStatus_t status =
      product->run(context.matmuls().library(), op, context.workspace(), context.stream());
  if (status == CUBLAS_STATUS_SUCCESS) {
    if (op.gelu_of != nullptr && !ends_with_gelu_slope(op.dtype_c)) multiply_by_gelu_slopes(context, op);
    return;
  }
  const cudaError_t error = cudaPeekAtLastError();  // of something before it on the stream, most likely
  context.note(error == cudaSuccess ? cudaErrorUnknown : error, cublasLtGetStatusName(status));
}

}  // namespace holdfast::kernels::cuda
