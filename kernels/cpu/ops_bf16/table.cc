// The kernels with bf16 matrix instructions, for the registry (kernels/registry.h).
#include "kernels/attention.h"
#include "kernels/cpu/lists.h"
#include "kernels/cpu/ops_bf16/ops.h"
#include "kernels/matmul.h"

namespace holdfast::cpu::HF_ISA {

namespace {

#define HF_QUOTED_(name) #name
#define HF_QUOTED(name) HF_QUOTED_(name)

template <typename Op>
bool is_bf16(const void* arguments) {
  return static_cast<const Op*>(arguments)->dtype == DType::bf16;
}

using Function = void (*)(const Context& context, const void* arguments);

template <typename Op>
constexpr Implementation kernel(const char* what, Function run, Function prepare) {
  Implementation result;
  result.op = Op::id;
  result.name = HF_QUOTED(HF_ISA);
  result.what = what;
  result.needs = CpuIsa::HF_ISA;
  result.supports = is_bf16<Op>;
  result.prepare = prepare;
  result.run = run;
  return result;
}

constexpr Implementation implementations[] = {
    kernel<Matmul>("own blocks and tiles (kernels/cpu/gemm), bf16 products by " HF_QUOTED(HF_ISA), run_gemm,
                   prepare_gemm),
    kernel<AttentionForward>("products of tiles and probabilities in bf16 by " HF_QUOTED(HF_ISA),
                             run_attention_forward, prepare_attention_forward),
    kernel<AttentionBackward>(
        "products of tiles, probabilities and their gradients in bf16 by " HF_QUOTED(HF_ISA),
        run_attention_backward, prepare_attention_backward),
};

}  // namespace

constinit const ImplementationList table_list = {"kernels/cpu/ops_bf16/table.cc", implementations,
                                                 sizeof(implementations) / sizeof(Implementation)};

}  // namespace holdfast::cpu::HF_ISA
