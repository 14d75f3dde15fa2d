// Implementation: one way of computing one op on one kind of device, as a file of kernels describes it to the
// registry (kernels/registry.h).
#pragma once

#include <cstddef>
#include <string>

#include "kernels/cpu/isa.h"
#include "kernels/op.h"

namespace holdfast::kernels {

struct PluginKernel;  // kernels/plugin.h
namespace cpu {
class Context;  // kernels/cpu/context.h: threads and scratch memory
}
namespace cuda {
class Context;  // kernels/cuda/context.h: stream and workspace
}

// Describes an implementation by constant data: files that are compiled for AVX-512 hold some of it, and none
// of their code may run on a processor without.
struct Implementation {
  OpId op = OpId::count;
  const char* name = nullptr;  // "avx512", "mine"; the builds of one source for several processors share it
  const char* what = nullptr;  // one-line description
  CpuIsa needs = CpuIsa::portable;  // lowest instruction set that runs it
  // GPU whose own instructions it uses, as 10 times its compute capability: 90 is built as sm_90a (wgmma, the
  // bulk tensor copies) and runs on GPUs of 9.0 alone; 0 = on all.
  int needs_gpu = 0;
  // True when its bits are those of "portable" for all arguments: choosing it never changes a run. Tests
  // check that.
  bool same_bits_as_portable = false;
  // Priority among the implementations that a device chooses by itself: the highest comes first, and of
  // equals the one that needs most; negative = only when requested by name.
  int preference = 0;
  // Returns the library that decides its bits, with its version; or null.
  std::string (*library)() = nullptr;

  // True when it computes only bf16, so that it decides no bit of a run in fp32; `supports` refuses the rest.
  bool bf16_only = false;
  // Returns whether it can compute these arguments, from shapes and dtypes alone; null = all. Arguments that
  // it cannot compute go to the next implementation in order.
  bool (*supports)(const void* arguments) = nullptr;
  // Prepares the op on the queue thread: in planning mode alone, and before every run, so it must be cheap
  // when there is nothing new to make. It reads shapes only, never the memory of the op. May be null.
  void (*prepare)(const cpu::Context& context, const void* arguments) = nullptr;
  void (*run)(const cpu::Context& context, const void* arguments) = nullptr;

  // Both are the counterparts for CUDA devices, whose implementations are in a registry of their own
  // (kernels/cuda). They run on the launching thread; cuda_run only puts work on the stream.
  void (*cuda_prepare)(cuda::Context& context, const void* arguments) = nullptr;
  void (*cuda_run)(cuda::Context& context, const void* arguments) = nullptr;

  // Kernel of a plug-in, in place of supports, prepare and run; null for the kernels of this build.
  const PluginKernel* plugin = nullptr;

  // Ask and run what the fields above have, or the plug-in; all are as their fields say.
  bool computes_all() const;  // no arguments go to the next implementation
  bool computes(const void* arguments) const;
  void prepare_on(const cpu::Context& context, const void* arguments) const;
  void run_on(const cpu::Context& context, const void* arguments) const;
};

// Lists the implementations of one source file.
struct ImplementationList {
  const char* file = nullptr;  // from the root of the tree
  const Implementation* first = nullptr;
  std::size_t count = 0;
};

}  // namespace holdfast::kernels
