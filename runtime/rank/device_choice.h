// Which device a run computes on: what `device` of a config asks for, what this machine and this build have,
// and the device itself.
//
// The CUDA device is in a library of its own (kernels/cuda_loader.h) beside the program; an environment
// variable names another one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda_loader.h"
#include "kernels/device.h"
#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline rank {

inline constexpr const char* cuda_module_variable = "HOLDFAST_CUDA_MODULE";

// The library that computes on GPUs. It needs neither a GPU nor a driver to be loaded.
Result<const CudaModule*> find_cuda_module(Env& env);

// Of the file, in hex: two builds of it may compute other bits. "unknown" when it cannot be read.
std::string cuda_module_digest(Env& env);

// Whether this machine has a driver for GPUs, or somebody names a library; without touching either.
bool may_have_gpu(Env& env);

// "GPU 0: NVIDIA H200, 140 GiB, sm_90, driver for CUDA 13.0".
std::string text_of(const CudaFacts& gpu);

// The GPUs that this process sees (at least one), and the library that computes on them. ExitCode::config
// with a clause that says what is missing.
struct CudaPresence {
  const CudaModule* module = nullptr;
  std::vector<CudaFacts> devices = {};
};
Result<CudaPresence> find_cuda(Env& env);
// The same for who was asked for `device = "cuda"`, as a sentence that says so.
Result<CudaPresence> needed_cuda(Env& env);
// The GPU of a rank: the ranks of one host take them in turn.
const CudaFacts& gpu_of_rank(const CudaPresence& cuda, int rank_on_host);

// "auto" becomes "cuda" where there is a GPU, and the library for it, and this rank's GPU was seen to run a
// kernel; else "cpu". Looks for none of it where there is no driver: loading the library takes time. Returns
// what to tell people: which GPU it is, or why not where one was looked for; else empty.
std::string resolve_device(Env& env, Config& config, int rank_on_host = 0);

// Whether this process can have the device that the config asks for, with the kernels that it asks for, and
// this rank's GPU runs one; ExitCode::config when not. "auto" can always be had, but for a GPU whose memory
// others hold for longer than elastic.memory_timeout: ExitCode::communication, as for "cuda", because a run
// that is started again must not go on with the CPU. `origin`: where each key was set, for messages. Comes
// before the first device, because oneDNN is told its limit here.
using Origins = std::map<std::string, std::string>;
Result<void> check_device(Env& env, const Config& config, const Origins& origin, int rank_on_host = 0);

// That compute for one rank, of `ranks_on_host`.
int threads_of_rank(Env& env, const Config& config, int ranks_on_host);

// What one rank computes on, of a config that was checked and resolved.
struct DevicePlace {
  int threads = 1;
  int rank_on_host = 0;
  int ranks_on_host = 1;
};
Result<std::unique_ptr<Device>> make_device(Env& env, const Config& config, const Origins& origin,
                                            const DevicePlace& place);

// The implementations that a device of this config chooses from.
Result<const KernelRegistry*> registry_of_device(Env& env, const Config& config);

}  // namespace holdfast::inline rank
