// Which device a run computes on: what `device` of a config asks for, what this machine and this build have,
// and the device itself.
//
// The CUDA device is in a library of its own (kernels/cuda_loader.h) beside the program; the environment
// variable HOLDFAST_CUDA_MODULE names another one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda_loader.h"
#include "kernels/device.h"
#include "runtime/config/config.h"
#include "runtime/core/env.h"
#include "runtime/core/result.h"

namespace holdfast {

// The GPUs that this process sees (at least one), and the library that computes on them. ExitCode::config
// with a clause that says what is missing.
struct CudaPresence {
  const CudaModule* module = nullptr;
  std::vector<CudaFacts> devices = {};
};
Result<CudaPresence> find_cuda(Env& env);
// The same for who was asked for `device = "cuda"`, as a sentence that says so.
Result<CudaPresence> needed_cuda(Env& env);

// "auto" becomes "cuda" where there is a GPU and the library for it, else "cpu". Looks for neither where
// there is no driver: loading the library takes time.
void resolve_device(Env& env, Config& config);

// Whether this process can have the device that the config asks for, with the kernels that it asks for;
// ExitCode::config when not. "auto" can always be had. `origin`: where each key was set, for messages. Comes
// before the first device, because oneDNN is told its limit here.
using Origins = std::map<std::string, std::string>;
Result<void> check_device(Env& env, const Config& config, const Origins& origin);

// What one rank computes on, of a config that was checked and resolved. The ranks of one host share its GPUs
// in turn.
struct DevicePlace {
  int threads = 1;
  int rank_on_host = 0;
};
Result<std::unique_ptr<Device>> make_device(Env& env, const Config& config, const Origins& origin,
                                            const DevicePlace& place);

// The implementations that a device of this config chooses from.
Result<const KernelRegistry*> registry_of_device(Env& env, const Config& config);

}  // namespace holdfast
