// The kernels with bf16 matrix instructions, for the registry (kernels/registry.h).
#include "kernels/cpu/lists.h"
#include "kernels/cpu/ops_bf16/ops.h"
#include "kernels/cpu/supports.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

#define HF_QUOTED_(name) #name
#define HF_QUOTED(name) HF_QUOTED_(name)

using Function = void (*)(const Context& context, const void* arguments);

constexpr Implementation kernel(OpId op, const char* what, Function run, Function prepare,
                                bool (*supports)(const void* arguments)) {
  Implementation result;
  result.op = op;
  result.name = HF_QUOTED(HF_ISA);
  result.what = what;
  result.needs = CpuIsa::HF_ISA;
  result.bf16_only = true;
  result.supports = supports;
  result.prepare = prepare;
  result.run = run;
  return result;
}

constexpr const char* gemm_what =
    "own blocks and tiles (kernels/cpu/gemm), bf16 products by " HF_QUOTED(HF_ISA);
constexpr const char* attention_what =
    "bf16 products of tiles, probabilities rounded to bf16, compiled for " HF_QUOTED(HF_ISA);

constexpr Implementation implementations[] = {
    kernel(OpId::matmul, gemm_what, run_gemm, prepare_gemm, supports_bf16_matmul),
    kernel(OpId::attention_forward, attention_what, run_attention_forward, prepare_attention_forward,
           supports_bf16_attention_forward),
    kernel(OpId::attention_backward, attention_what, run_attention_backward, prepare_attention_backward,
           supports_bf16_attention_backward),
};

}  // namespace

constinit const ImplementationList table_list = {"kernels/cpu/ops_bf16/table.cc", implementations,
                                                 sizeof(implementations) / sizeof(Implementation)};

}  // namespace holdfast::kernels::cpu::HF_ISA
