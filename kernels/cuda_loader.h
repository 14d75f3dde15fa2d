// CUDA as a choice at run time: all that calls CUDA is in a library of its own beside the program
// (libholdfast_cuda.so, made from kernels/cuda/ wherever there is nvcc), which is loaded when a GPU is asked
// for. Without it, or without a driver, everything works on the CPU.
//
// Errors: ExitCode::config with a sentence that says what is missing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/nccl_library.h"
#include "kernels/registry.h"
#include "runtime/core/result.h"

namespace holdfast::inline kernels {

struct CudaFacts {
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // tells it from every other GPU, in hex; ranks may know one GPU by different ordinals
  int ordinal = 0;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  int runtime_version = 0, driver_version = 0;  // 13000 is 13.0
  std::uint64_t memory_bytes = 0;
  std::uint64_t l2_bytes = 0;
};

// The processor that kernels for this GPU are chosen for.
inline KernelTarget target_of(const CudaFacts& gpu) {
  return {.gpu = 10 * gpu.compute_major + gpu.compute_minor};
}

// How long to wait for memory of a GPU that others hold: a process that was killed gives its memory back only
// after the driver has torn it down, which takes seconds. What this process alone could not have is not
// waited for.
struct MemoryWait {
  std::int64_t timeout_ms = 60'000;
  int ranks_on_gpu = 1;  // that may share the GPU and take the same memory
};

// Of an op that ran; `arguments` is the op's struct.
using TimedOp = std::function<void(OpId, const void* arguments, std::int64_t duration_ns)>;

struct CudaDeviceOptions {
  int ordinal = 0;                             // of the GPUs that this process sees
  std::vector<KernelPreference> kernels = {};  // by name; the others are chosen by the registry
  // For profilers: told how long each op took on the GPU, in order, by calls of Device::wait() that found
  // their ticket reached. Only the launching thread may wait then.
  TimedOp timed = {};
  // Device::repeat() by CUDA graphs; not together with `timed`, which then counts for more.
  bool graphs = false;
  MemoryWait memory_wait = {};
};

// What the library hands out. Program and library are built together and share these headers, the C++ runtime
// and the heap; neither throws into the other.
struct CudaModule {
  std::string (*built_for)();  // "sm_80, sm_90": what its kernels were compiled for
  int runtime_version;         // of CUDA, that it was built with; 13000 is 13.0
  const KernelRegistry& (*registry)();
  Result<std::vector<CudaFacts>> (*devices)();  // those that this process sees; none is an error
  // Whether this GPU runs what the library has, with a clause that says why not: by running one kernel. Waits
  // for a GPU whose memory is full. ExitCode::communication when it stays so.
  Result<void> (*try_device)(int ordinal, const MemoryWait& wait);
  // Tries the instructions that only GPUs of this kind have, for which the library has kernels of their own:
  // "sm_90a: warpgroup products are right"; nothing for a GPU that has none, or where none were built. Call
  // after try_device(). ExitCode::config with a clause when they do not run or are wrong.
  Result<std::string> (*try_own_instructions)(int ordinal);
  Result<std::unique_ptr<Device>> (*make_device)(const CudaDeviceOptions& options);
  // NCCL, from the library `file` (nccl_library_file, or a path), which stays loaded until the process ends.
  // ExitCode::config with a clause when this build has none, when the library is not there or older than
  // NcclLibrary::version_min, when there is no GPU.
  Result<std::unique_ptr<NcclLibrary>> (*load_nccl)(const std::string& file);
};
inline constexpr const char* cuda_module_file = "libholdfast_cuda.so";
inline constexpr const char* cuda_module_symbol = "holdfast_cuda_module";
using CudaModuleFactory = const CudaModule*();

// Stays loaded until the process ends. `path`: of the library.
Result<const CudaModule*> load_cuda_module(const std::string& path);

}  // namespace holdfast::inline kernels
