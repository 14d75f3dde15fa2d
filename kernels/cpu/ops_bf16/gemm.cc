// Matrix products of bf16: AMX tiles, or dot products of pairs.
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/matmul_cache.h"
#include "kernels/cpu/ops_bf16/ops.h"
#if defined(__AMX_BF16__)
#include "kernels/cpu/gemm/amx_tile.h"
#endif

namespace holdfast::kernels::cpu::HF_ISA {

namespace {
#if defined(__AMX_BF16__)
using Tile = AmxTile;
#else
using Tile = VectorTile<PairWords, MultiplyPairs>;
#endif
}  // namespace

void run_gemm(const Context& context, const void* arguments) {
  run_gemm<Tile>(context, *static_cast<const Matmul*>(arguments));
}

void prepare_gemm(const Context& context, const void* arguments) {
  const Matmul& op = *static_cast<const Matmul*>(arguments);
  check_matmul(op);
  prepare_gemm<Tile>(context, op);
}

}  // namespace holdfast::kernels::cpu::HF_ISA
