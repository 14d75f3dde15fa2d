// Matrix products by vector instructions: fp32, and bf16 widened to fp32 as it is packed.
#include "kernels/cpu/gemm/gemm.h"

#include "kernels/cpu/matmul_cache.h"
#include "kernels/cpu/ops/ops.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {
using Fp32Tile = VectorTile<ValueWords<float>, MultiplyValues>;
using WidenedTile = VectorTile<ValueWords<BFloat16>, MultiplyValues>;
}  // namespace

void run_matmul(const Context& context, const void* arguments) {
  const Matmul& op = *static_cast<const Matmul*>(arguments);
  if (op.dtype == DType::bf16) return run_gemm<WidenedTile>(context, op);
  return run_gemm<Fp32Tile>(context, op);
}

void prepare_matmul(const Context& context, const void* arguments) {
  const Matmul& op = *static_cast<const Matmul*>(arguments);
  check_matmul(op);
  if (op.dtype == DType::bf16) return prepare_gemm<WidenedTile>(context, op);
  return prepare_gemm<Fp32Tile>(context, op);
}

}  // namespace holdfast::kernels::cpu::HF_ISA
