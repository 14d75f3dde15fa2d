// Chooses and makes the device that a run computes on, from `device` of its config and from what this machine
// and this build have.
//
// The CUDA device is in a library of its own (runtime/device/cuda_loader.h) beside the program; an
// environment variable can name another library (cuda_module_variable).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/device/cuda_loader.h"
#include "runtime/device/device.h"
#include "runtime/os/env.h"

namespace holdfast::rank {

// Returns the library that computes on GPUs. It needs neither a GPU nor a driver to be loaded.
Result<const CudaModule*> find_cuda_module(Env& env);

// Returns the digest of the library's file, in hex, because two builds of it may compute different bits;
// "unknown" when the file cannot be read.
std::string cuda_module_digest(Env& env);

// Returns true if this machine has a driver for GPUs, or if the environment variable names a library. It
// touches neither of them.
bool may_have_gpu(Env& env);

// Returns a description such as "GPU 0: NVIDIA H200, 140 GiB, sm_90, driver for CUDA 13.0".
std::string text_of(const CudaFacts& gpu);

// CudaPresence holds the GPUs that this process sees (at least one), and the library that computes on them.
// find_cuda() fails with ExitCode::config and a clause that says what is missing.
struct CudaPresence {
  const CudaModule* module = nullptr;
  std::vector<CudaFacts> devices = {};
};
Result<CudaPresence> find_cuda(Env& env);
// Does the same for `device = "cuda"`, and fails with a sentence that names this setting.
Result<CudaPresence> needed_cuda(Env& env);

// DevicePlace says which of the devices of its host a rank computes on.
struct DevicePlace {
  int rank_on_host = 0;  // index among the ranks of the host, which take its GPUs in turn
  std::string gpu = {};  // hardware_name() of the GPU that this rank is to have; empty: that of its turn
};
// Returns the GPU of a rank. ExitCode::config and Reach::host, with a clause, if the wanted one is not there.
Result<CudaFacts> gpu_of_rank(const CudaPresence& cuda, const DevicePlace& place);

// Returns "GPU-" and the uuid, as nvidia-smi -L shows it.
std::string hardware_name(const CudaFacts& gpu);
// Returns the name of the hardware that a rank computes on, which is unique on its host and the same in every
// start: that of its GPU, or "cpu" for all processors and all memory of the host, which its ranks share.
// `config` is resolved. "gpu": the GPU is not known any more.
std::string hardware_name(Env& env, const Config& config, const DevicePlace& place);

// Replaces "auto" by "cuda" if there is a GPU, and the library for it, and this rank's GPU has been seen to
// run a kernel; else by "cpu". It looks for none of this if there is no driver, because loading the library
// takes time. Returns a message for the user: which GPU it is, or why there is none if one was looked for;
// else empty.
std::string resolve_device(Env& env, Config& config, const DevicePlace& place = {});

// Checks that this process can have the device that the config asks for, with the kernels that it asks for,
// and that this rank's GPU runs one of them; ExitCode::config when not. "auto" is always available, with one
// exception: if other processes hold the memory of the GPU for longer than elastic.memory_timeout, the error
// is ExitCode::communication, as for "cuda", because a run that is started again must not continue on the
// CPU. `origin`: where each key was set, for messages. Call it before the first device is made, because
// oneDNN is told its limit here.
using Origins = std::map<std::string, std::string>;
Result<void> check_device(Env& env, const Config& config, const Origins& origin,
                          const DevicePlace& place = {});

// Returns the number of threads that compute for one rank, of `ranks_on_host`.
int threads_of_rank(Env& env, const Config& config, int ranks_on_host);

// DeviceShare describes the share of a host that one rank's device uses. make_device() takes a config that
// was checked and resolved. For a GPU it binds this process to processors near it (processor_binding.h).
struct DeviceShare {
  int threads = 1;
  DevicePlace place = {};
  int ranks_on_host = 1;
  bool runs_at_launch = false;  // CpuDeviceOptions::runs_at_launch
};
Result<std::unique_ptr<Device>> make_device(Env& env, const Config& config, const Origins& origin,
                                            const DeviceShare& share);

// Returns the largest number of ranks that have the same GPU. `gpus`: hardware_name() by rank.
int largest_sharing(std::span<const std::string> gpus);
// Checks that no more than `allowed` ranks have the GPU of `rank`, which counts itself and the lower ranks.
// ExitCode::config and Reach::host if there are more.
Result<void> check_sharing(std::span<const std::string> gpus, int rank, std::int64_t allowed);

// Returns the processor that the kernels of such a device are for.
Result<KernelTarget> target_of_device(Env& env, const Config& config);
// Returns the kernel implementations that a device of this config chooses from.
Result<const KernelRegistry*> registry_of_device(Env& env, const Config& config);

}  // namespace holdfast::rank
