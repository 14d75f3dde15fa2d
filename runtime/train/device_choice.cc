#include "runtime/train/device_choice.h"

#include <algorithm>

#include "runtime/core/program_directory.h"
#include "runtime/train/kernel_choice.h"

namespace holdfast {
namespace {

constexpr const char* module_variable = "HOLDFAST_CUDA_MODULE";

std::string module_path(Env& env) {
  const std::string given = env.variable(module_variable);
  return given.empty() ? fmt::format("{}/{}", program_directory(), cuda_module_file) : given;
}

// Of Linux, or of Windows for its Linux; or whoever names a library knows better.
bool may_have_gpu(Env& env) {
  const auto exists = [&env](const char* path) {
    const Result<FileStatus> status = env.status(path);
    return status.ok() && status->exists;
  };
  return !env.variable(module_variable).empty() || exists("/proc/driver/nvidia/version") ||
         exists("/dev/nvidiactl") || exists("/dev/dxg");
}

}  // namespace

Result<CudaPresence> find_cuda(Env& env) {
  CudaPresence presence;
  HF_TRY(presence.module, load_cuda_module(module_path(env)));
  HF_TRY(presence.devices, presence.module->devices());
  return presence;
}

Result<CudaPresence> needed_cuda(Env& env) {
  Result<CudaPresence> found = find_cuda(env);
  if (found.ok()) return found;
  return fail(found.error().code, "device = \"cuda\", but {}", found.error().message);
}

void resolve_device(Env& env, Config& config) {
  if (config.device == "auto") config.device = may_have_gpu(env) && find_cuda(env).ok() ? "cuda" : "cpu";
}

Result<const KernelRegistry*> registry_of_device(Env& env, const Config& config) {
  if (config.device != "cuda") return &kernel_registry();
  HF_TRY(const CudaPresence cuda, needed_cuda(env));
  return &cuda.module->registry();
}

Result<void> check_device(Env& env, const Config& config, const Origins& origin) {
  Config resolved = config;
  resolve_device(env, resolved);
  const KernelRequest kernels = kernel_request(config.kernels, origin);
  if (resolved.device == "cpu") return settle_kernels(kernels);
  HF_TRY(const KernelRegistry* registry, registry_of_device(env, resolved));
  return outcome_of(registry->choose(CpuIsa::portable, kernels.wishes));
}

Result<std::unique_ptr<Device>> make_device(Env& env, const Config& config, const Origins& origin,
                                            const DevicePlace& place) {
  const KernelRequest kernels = kernel_request(config.kernels, origin);
  if (config.device == "cpu") {
    return make_cpu_device({.threads = place.threads, .isa = kernels.isa, .kernels = kernels.wishes});
  }
  HF_TRY(const CudaPresence cuda, needed_cuda(env));
  const int ordinal = place.rank_on_host % static_cast<int>(cuda.devices.size());
  return cuda.module->make_device({.ordinal = ordinal, .kernels = kernels.wishes});
}

}  // namespace holdfast
