// How a file of kernels/cpu/custom puts its implementations into the registry; docs/kernels.md walks through
// one. Such a file is compiled like those of kernels/cpu/ops: once per instruction set, and under their rules
// (kernels/cpu/ops/ops.h).
//
//   namespace holdfast::cpu::HF_ISA {
//   namespace {
//   void run(const Context& context, const RmsNormForward& op) { ... }
//   }  // namespace
//   HF_REGISTER_KERNELS(kernel<RmsNormForward, run>({.name = "mine", .what = "two rows at a time"}));
//   }  // namespace holdfast::cpu::HF_ISA
#pragma once

#include "kernels/cpu/context.h"
#include "kernels/implementation.h"

namespace holdfast::cpu::HF_ISA {

// What the registry has to know of a kernel; Implementation (kernels/registry.h) says what each means.
struct About {
  const char* name = nullptr;
  const char* what = nullptr;
  bool same_bits_as_portable = false;
  bool bf16_only = false;
  int preference = -1;              // only when asked for
  CpuIsa needs = CpuIsa::portable;  // when it needs more than the instruction set of HF_ISA
};

// The implementation that runs `run_op`; `prepare_op` and `supports_op` may be left out.
template <typename Op, void (*run_op)(const Context&, const Op&),
          void (*prepare_op)(const Context&, const Op&) = nullptr, bool (*supports_op)(const Op&) = nullptr>
constexpr Implementation kernel(const About& about) {
  Implementation result;
  result.op = Op::id;
  result.name = about.name;
  result.what = about.what;
  result.needs = about.needs < CpuIsa::HF_ISA ? CpuIsa::HF_ISA : about.needs;
  result.same_bits_as_portable = about.same_bits_as_portable;
  result.bf16_only = about.bf16_only;
  result.preference = about.preference;
  result.run = [](const Context& context, const void* arguments) {
    run_op(context, *static_cast<const Op*>(arguments));
  };
  if constexpr (prepare_op != nullptr) {
    result.prepare = [](const Context& context, const void* arguments) {
      prepare_op(context, *static_cast<const Op*>(arguments));
    };
  }
  if constexpr (supports_op != nullptr) {
    result.supports = [](const void* arguments) { return supports_op(*static_cast<const Op*>(arguments)); };
  }
  return result;
}

// One per file, after its kernels, in namespace holdfast::cpu::HF_ISA. CMake names the list after the file
// (HF_KERNEL_LIST) and writes it into the registry.
#define HF_REGISTER_KERNELS(...)                                                        \
  namespace {                                                                           \
  constexpr Implementation implementations[] = {__VA_ARGS__};                           \
  }                                                                                     \
  extern const ImplementationList HF_KERNEL_LIST;                                       \
  constinit const ImplementationList HF_KERNEL_LIST = {HF_KERNEL_FILE, implementations, \
                                                       sizeof(implementations) / sizeof(Implementation)}

}  // namespace holdfast::cpu::HF_ISA
