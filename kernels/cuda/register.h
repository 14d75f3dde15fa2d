// How a file of kernels/cuda/custom puts its implementations into the registry; docs/kernels.md walks through
// one.
//
//   namespace holdfast::cuda::custom {
//   namespace {
//   void run(Context& context, const RmsNormForward& op) { ... }
//   }  // namespace
//   HF_REGISTER_KERNELS(kernel<RmsNormForward, run>({.name = "mine", .what = "two rows at a time"}));
//   }  // namespace holdfast::cuda::custom
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/implementation.h"

namespace holdfast::cuda::custom {

// What the registry has to know of a kernel; Implementation (kernels/implementation.h) says what each means.
struct About {
  const char* name = nullptr;
  const char* what = nullptr;
  bool same_bits_as_portable = false;
  int preference = -1;  // only when asked for
};

// The implementation that runs `run_op`; `prepare_op` and `supports_op` may be left out.
template <typename Op, void (*run_op)(Context&, const Op&), void (*prepare_op)(Context&, const Op&) = nullptr,
          bool (*supports_op)(const Op&) = nullptr>
constexpr Implementation kernel(const About& about) {
  Implementation result;
  result.op = Op::id;
  result.name = about.name;
  result.what = about.what;
  result.same_bits_as_portable = about.same_bits_as_portable;
  result.preference = about.preference;
  result.cuda_run = [](Context& context, const void* arguments) {
    run_op(context, *static_cast<const Op*>(arguments));
  };
  if constexpr (prepare_op != nullptr) {
    result.cuda_prepare = [](Context& context, const void* arguments) {
      prepare_op(context, *static_cast<const Op*>(arguments));
    };
  }
  if constexpr (supports_op != nullptr) {
    result.supports = [](const void* arguments) { return supports_op(*static_cast<const Op*>(arguments)); };
  }
  return result;
}

// One per file, after its kernels, in namespace holdfast::cuda::custom. CMake names the list after the file
// (HF_KERNEL_LIST) and writes it into the registry.
#define HF_REGISTER_KERNELS(...)                                                        \
  namespace {                                                                           \
  constexpr Implementation implementations[] = {__VA_ARGS__};                           \
  }                                                                                     \
  extern const ImplementationList HF_KERNEL_LIST;                                       \
  constinit const ImplementationList HF_KERNEL_LIST = {HF_KERNEL_FILE, implementations, \
                                                       sizeof(implementations) / sizeof(Implementation)}

}  // namespace holdfast::cuda::custom
