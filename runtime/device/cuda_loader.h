// CUDA as a choice at run time: all code that calls CUDA is in a library of its own beside the program
// (libholdfast_cuda.so, made from kernels/cuda/ wherever there is nvcc), which is loaded when a GPU is
// requested. Without it, or without a driver, everything works on the CPU.
//
// Errors: ExitCode::config and Reach::host, with a sentence that names what is missing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/registry.h"
#include "runtime/core/result.h"
#include "runtime/device/device.h"
#include "runtime/device/nccl_library.h"

namespace holdfast::device {

struct CudaFacts {
  std::string name;             // "NVIDIA H200"
  std::string uuid;             // unique to the GPU, in hex; ranks may know one GPU by different ordinals
  std::string pci_bus_id = {};  // "0000:0f:00.0": its name in /sys/bus/pci/devices, and for NVML
  int ordinal = 0;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  int runtime_version = 0, driver_version = 0;  // 13000 is 13.0
  std::uint64_t memory_bytes = 0;
  std::uint64_t l2_bytes = 0;
};

// Returns the processor that kernels for this GPU are chosen for.
inline KernelTarget target_of(const CudaFacts& gpu) {
  return {.gpu = 10 * gpu.compute_major + gpu.compute_minor};
}

// Limits the wait for memory of a GPU that others hold: the memory of a killed process is free only after the
// driver has torn it down, which takes seconds. Memory that exceeds the GPU for this process alone is not
// waited for.
struct MemoryWait {
  std::int64_t timeout_ms = 60'000;
  int ranks_on_gpu = 1;  // that may share the GPU and take the same memory
};

// Receives the time of an op that ran; `arguments` is the op's struct.
using TimedOp = std::function<void(OpId, const void* arguments, std::int64_t duration_ns)>;

struct CudaDeviceOptions {
  int ordinal = 0;                             // of the GPUs that this process sees
  std::vector<KernelPreference> kernels = {};  // by name; the others are chosen by the registry
  // Receives, for profilers, how long each op took on the GPU, in order; called by calls of Device::wait()
  // that found their ticket reached. Only the launching thread may wait then.
  TimedOp timed = {};
  // Implements Device::repeat() by CUDA graphs; not together with `timed`, which then takes precedence.
  bool graphs = false;
  MemoryWait memory_wait = {};
};

// The functions of the library. Program and library are built together and share these headers, the C++
// runtime and the heap; neither throws into the other.
struct CudaModule {
  std::string (*built_for)();  // "sm_80, sm_90": what its kernels were compiled for
  int runtime_version;         // of CUDA, that it was built with; 13000 is 13.0
  const KernelRegistry& (*registry)();
  Result<std::vector<CudaFacts>> (*devices)();  // those that this process sees; none is an error
  // Tests whether this GPU runs the library's kernels, by running one; the error has a clause with the
  // reason. Waits for a GPU whose memory is full. ExitCode::communication when it stays full.
  Result<void> (*try_device)(int ordinal, const MemoryWait& wait);
  // Tries the instructions that only GPUs of this kind have, for which the library has kernels of their own.
  // Returns "sm_90a: warpgroup products are right"; nothing for a GPU that has none, or where none were
  // built. Call after try_device(). ExitCode::config with a clause when they do not run or are wrong.
  Result<std::string> (*try_own_instructions)(int ordinal);
  Result<std::unique_ptr<Device>> (*make_device)(const CudaDeviceOptions& options);
  // Loads NCCL from the library `file` (nccl_library_file, or a path), which stays loaded until the process
  // ends. ExitCode::config with a clause when this build has none, when the library is missing or older than
  // NcclLibrary::version_min, or when there is no GPU.
  Result<std::unique_ptr<NcclLibrary>> (*load_nccl)(const std::string& file);
};
inline constexpr const char* cuda_module_file = "libholdfast_cuda.so";
inline constexpr const char* cuda_module_symbol = "holdfast_cuda_module";
using CudaModuleFactory = const CudaModule*();

// Loads the library `path`, which stays loaded until the process ends.
Result<const CudaModule*> load_cuda_module(const std::string& path);

}  // namespace holdfast::device
