// Registers the implementations of a file of own kernels, for any device: the common part of
// kernels/cpu/register.h and kernels/cuda/register.h.
#pragma once

#include "kernels/implementation.h"

namespace holdfast::kernels {

// Describes a kernel to the registry; Implementation (kernels/implementation.h) explains each field.
struct About {
  const char* name = nullptr;
  const char* what = nullptr;
  bool same_bits_as_portable = false;
  bool bf16_only = false;
  int preference = -1;              // only when requested
  CpuIsa needs = CpuIsa::portable;  // on a CPU, when it needs more than the instruction set of HF_ISA
  int needs_gpu = 0;                // on a GPU, in a file named *.sm_90a.cu: 90
};

template <typename Op>
constexpr Implementation described(const About& about) {
  Implementation result;
  result.op = Op::id;
  result.name = about.name;
  result.what = about.what;
  result.needs = about.needs;
  result.needs_gpu = about.needs_gpu;
  result.same_bits_as_portable = about.same_bits_as_portable;
  result.bf16_only = about.bf16_only;
  result.preference = about.preference;
  return result;
}

// Returns `function` for arguments of any type; null for null.
template <typename Context, typename Op, void (*function)(Context&, const Op&)>
constexpr void (*untyped())(Context&, const void*) {
  if constexpr (function == nullptr) {
    return nullptr;
  } else {
    return [](Context& context, const void* arguments) {
      function(context, *static_cast<const Op*>(arguments));
    };
  }
}
template <typename Op, bool (*function)(const Op&)>
constexpr bool (*untyped())(const void*) {
  if constexpr (function == nullptr) {
    return nullptr;
  } else {
    return [](const void* arguments) { return function(*static_cast<const Op*>(arguments)); };
  }
}

// Registers the kernels of a file. Use it once per file, after the kernels, in the namespace that the
// device's register.h names. CMake names the list after the file (HF_KERNEL_LIST) and writes it into the
// registry.
#define HF_REGISTER_KERNELS(...)                                                        \
  namespace {                                                                           \
  constexpr Implementation implementations[] = {__VA_ARGS__};                           \
  }                                                                                     \
  extern const ImplementationList HF_KERNEL_LIST;                                       \
  constinit const ImplementationList HF_KERNEL_LIST = {HF_KERNEL_FILE, implementations, \
                                                       sizeof(implementations) / sizeof(Implementation)}

}  // namespace holdfast::kernels
