// The kernels of one instruction set, for the registry (kernels/registry.h).
#include "kernels/cpu/lists.h"
#include "kernels/cpu/matmul_cache.h"
#include "kernels/cpu/ops/ops.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

#define HF_QUOTED_(name) #name
#define HF_QUOTED(name) HF_QUOTED_(name)

using Function = void (*)(const Context& context, const void* arguments);

consteval Function prepare_of(OpId op) {
  switch (op) {
    case OpId::matmul:
      return prepare_matmul;
    case OpId::layernorm_backward:
      return prepare_layernorm_backward;
    case OpId::rmsnorm_backward:
      return prepare_rmsnorm_backward;
    case OpId::attention_forward:
      return prepare_attention_forward;
    case OpId::attention_backward:
      return prepare_attention_backward;
    case OpId::cross_entropy:
      return prepare_cross_entropy;
    default:
      return nullptr;
  }
}

consteval Implementation kernel(OpId op, Function run) {
  Implementation result;
  result.op = op;
  result.name = HF_QUOTED(HF_ISA);
  result.what = "own kernel on vectors of sixteen (kernels/cpu/simd.h), compiled for " HF_QUOTED(HF_ISA);
  result.needs = CpuIsa::HF_ISA;
  result.same_bits_as_portable = true;
  result.prepare = prepare_of(op);
  result.run = run;
  if (op != OpId::matmul) return result;
  result.what = "own blocks and tiles (kernels/cpu/gemm), compiled for " HF_QUOTED(HF_ISA);
  // The portable build has a lower preference: without an fma instruction, oneDNN is many times as fast.
  if (result.needs == CpuIsa::portable) result.preference = -1;
  return result;
}

consteval Implementation onednn_matmul() {
  Implementation result;
  result.op = OpId::matmul;
  result.name = "onednn";
  result.what = "tiles of one thread each, which follow from the shape, by oneDNN";
  result.needs = CpuIsa::HF_ISA;
  result.library = matmul_library;
  result.prepare = prepare_onednn_matmul;
  result.run = run_onednn_matmul;
  return result;
}

#define HF_KERNEL(op, contract, op_class) kernel(OpId::op, run_##op),
constexpr Implementation implementations[] = {HF_OPS(HF_KERNEL) onednn_matmul()};

}  // namespace

constinit const ImplementationList table_list = {"kernels/cpu/ops/table.cc", implementations,
                                                 sizeof(implementations) / sizeof(Implementation)};

}  // namespace holdfast::kernels::cpu::HF_ISA
