// Registers the implementations of a file of kernels/cuda/custom; docs/kernels.md walks through one.
//
//   namespace holdfast::kernels::cuda::custom {
//   namespace {
//   void run(Context& context, const RmsNormForward& op) { ... }
//   }  // namespace
//   HF_REGISTER_KERNELS(kernel<RmsNormForward, run>({.name = "mine", .what = "two rows at a time"}));
//   }  // namespace holdfast::kernels::cuda::custom
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/register.h"

namespace holdfast::kernels::cuda::custom {

// Returns the implementation that runs `run_op`; `prepare_op` and `supports_op` may be left out.
template <typename Op, void (*run_op)(Context&, const Op&), void (*prepare_op)(Context&, const Op&) = nullptr,
          bool (*supports_op)(const Op&) = nullptr>
constexpr Implementation kernel(const About& about) {
  Implementation result = described<Op>(about);
  result.cuda_run = untyped<Context, Op, run_op>();
  result.cuda_prepare = untyped<Context, Op, prepare_op>();
  result.supports = untyped<Op, supports_op>();
  return result;
}

}  // namespace holdfast::kernels::cuda::custom
