// Registers the implementations of a file of kernels/cpu/custom; docs/kernels.md walks through one. Such a
// file is compiled like those of kernels/cpu/ops: once per instruction set, and under their rules
// (kernels/cpu/ops/ops.h).
//
//   namespace holdfast::kernels::cpu::HF_ISA {
//   namespace {
//   void run(const Context& context, const RmsNormForward& op) { ... }
//   }  // namespace
//   HF_REGISTER_KERNELS(kernel<RmsNormForward, run>({.name = "mine", .what = "two rows at a time"}));
//   }  // namespace holdfast::kernels::cpu::HF_ISA
#pragma once

#include "kernels/cpu/context.h"
#include "kernels/register.h"

namespace holdfast::kernels::cpu::HF_ISA {

// Returns the implementation that runs `run_op`; `prepare_op` and `supports_op` may be left out.
template <typename Op, void (*run_op)(const Context&, const Op&),
          void (*prepare_op)(const Context&, const Op&) = nullptr, bool (*supports_op)(const Op&) = nullptr>
constexpr Implementation kernel(const About& about) {
  Implementation result = described<Op>(about);
  if (result.needs < CpuIsa::HF_ISA) result.needs = CpuIsa::HF_ISA;
  result.run = untyped<const Context, Op, run_op>();
  result.prepare = untyped<const Context, Op, prepare_op>();
  result.supports = untyped<Op, supports_op>();
  return result;
}

}  // namespace holdfast::kernels::cpu::HF_ISA
