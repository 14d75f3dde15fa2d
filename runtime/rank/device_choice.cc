#include "runtime/rank/device_choice.h"

#include <fmt/core.h>

#include <algorithm>

#include "kernels/plugin.h"
#include "kernels/plugin_loader.h"
#include "runtime/config/loader.h"
#include "runtime/core/digest.h"
#include "runtime/core/units.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/rank/kernel_choice.h"
#include "runtime/rank/processor_binding.h"

namespace holdfast::rank {
namespace {

std::string module_path(Env& env) {
  const std::string given = env.variable(cuda_module_variable);
  return given.empty() ? fmt::format("{}/{}", program_directory(), cuda_module_file) : given;
}

// Extends the error of something that only `device = "cuda"` asks for.
template <typename Found>
Result<Found> needed(Result<Found> found) {
  if (found.ok()) return found;
  return fail_because(found.error(), found.error().code,
                      "device = \"cuda\", but {}, or use \"cpu\" or \"auto\"", found.error().message);
}

// UsableGpu is the GPU of a rank, which has been seen to run a kernel.
struct UsableGpu {
  const CudaModule* module;
  CudaFacts facts;
  int gpus;  // number of GPUs of this host
};
Result<UsableGpu> usable_gpu(Env& env, const Config& config, const DevicePlace& place) {
  HF_TRY(const CudaPresence cuda, find_cuda(env));
  HF_TRY(const CudaFacts facts, gpu_of_rank(cuda, place));
  HF_TRY_VOID(cuda.module->try_device(facts.ordinal, {.timeout_ms = config.elastic.memory_timeout_ms}));
  return UsableGpu{cuda.module, facts, static_cast<int>(cuda.devices.size())};
}

// Reads kernels.plan; nothing where none is given.
Result<ProductAlgorithms> given_plan(Env& env, const Config& config) {
  if (config.kernels.plan.empty()) return ProductAlgorithms{};
  if (config.device == "cpu")
    return fail(
        ExitCode::config,
        "kernels.plan = \"{}\" has algorithms for a GPU, and this run computes on the processor; leave it "
        "out, or set device = \"cuda\"",
        config.kernels.plan);
  const Result<std::string> text = read_text_within(env, config.kernels.plan, text_limits::product_plan);
  if (!text.ok())
    return fail_because(
        text.error(), ExitCode::config,
        "kernels.plan = \"{}\": {}; give the file that holdfast bench op matmul --device cuda "
        "--algorithms --plan wrote, or leave it out",
        config.kernels.plan, text.error().message);
  return read_plan(*text, config.kernels.plan);
}

}  // namespace

// Looks for the driver of Linux, and for that of Windows in its subsystem for Linux (/dev/dxg). A user who
// names a library knows better, so the variable alone suffices.
bool may_have_gpu(Env& env) {
  const auto exists = [&env](const char* path) {
    const Result<FileStatus> status = env.status(path);
    return status.ok() && status->exists;
  };
  return !env.variable(cuda_module_variable).empty() || exists("/proc/driver/nvidia/version") ||
         exists("/dev/nvidiactl") || exists("/dev/dxg");
}

Result<const CudaModule*> find_cuda_module(Env& env) {
  return load_cuda_module(module_path(env));
}

std::string cuda_module_digest(Env& env) {
  const Result<std::string> library = env.read_text(module_path(env));
  return library.ok() ? to_hex(digest_of(*library)) : "unknown";
}

std::string text_of(const CudaFacts& gpu) {
  return fmt::format("GPU {}: {}, {}, sm_{}{}, driver for CUDA {}.{}", gpu.ordinal, gpu.name,
                     format_bytes(gpu.memory_bytes), gpu.compute_major, gpu.compute_minor,
                     gpu.driver_version / 1000, gpu.driver_version % 1000 / 10);
}

Result<CudaPresence> find_cuda(Env& env) {
  CudaPresence presence;
  HF_TRY(presence.module, find_cuda_module(env));
  HF_TRY(presence.devices, presence.module->devices());
  return presence;
}

Result<CudaPresence> needed_cuda(Env& env) {
  return needed(find_cuda(env));
}

Result<CudaFacts> gpu_of_rank(const CudaPresence& cuda, const DevicePlace& place) {
  if (place.gpu.empty())
    return cuda.devices[static_cast<std::size_t>(place.rank_on_host) % cuda.devices.size()];
  for (const CudaFacts& gpu : cuda.devices) {
    if (hardware_name(gpu) == place.gpu) return gpu;
  }
  return with_reach(
      Reach::host,
      fail(ExitCode::config,
           "{}, which this rank is to have, is not one of the {} GPUs that it sees; look at what "
           "nvidia-smi says",
           place.gpu, cuda.devices.size()));
}

std::string hardware_name(const CudaFacts& gpu) {
  std::string name = "GPU-" + gpu.uuid;
  constexpr std::size_t whole_name = 36;  // 4 and 32 digits
  if (name.size() != whole_name) return name;
  for (const std::size_t dash : {12, 17, 22, 27}) name.insert(dash, "-");
  return name;
}

std::string hardware_name(Env& env, const Config& config, const DevicePlace& place) {
  if (config.device != "cuda") return "cpu";
  const Result<CudaPresence> cuda = find_cuda(env);
  const Result<CudaFacts> gpu = cuda.ok() ? gpu_of_rank(*cuda, place) : cuda.error();
  return gpu.ok() ? hardware_name(*gpu) : "gpu";
}

int largest_sharing(std::span<const std::string> gpus) {
  std::ptrdiff_t most = 1;
  for (const std::string& gpu : gpus) most = std::max(most, std::ranges::count(gpus, gpu));
  return static_cast<int>(most);
}

Result<void> check_sharing(std::span<const std::string> gpus, int rank, std::int64_t allowed) {
  const auto index = static_cast<std::size_t>(rank);
  const std::string& gpu = gpus[index];
  if (std::ranges::count(gpus.first(index), gpu) < allowed) return {};
  return with_reach(
      Reach::host,
      fail(
          ExitCode::config,
          "{} already has {} of the ranks of this host, as many as a GPU had when the run began: a GPU is "
          "gone "
          "(nvidia-smi -L lists those that are left), or this host has more ranks than before. Repair it, or "
          "set parallel.ranks_per_gpu = {} to have ranks share a GPU",
          gpu, allowed, allowed + 1));
}

std::string resolve_device(Env& env, Config& config, const DevicePlace& place) {
  if (config.device != "auto") return {};
  config.device = "cpu";
  if (!may_have_gpu(env)) return {};
  const Result<UsableGpu> gpu = usable_gpu(env, config, place);
  if (!gpu.ok()) return fmt::format("device = \"auto\" is the CPU: {}", gpu.error().message);
  config.device = "cuda";
  return fmt::format("device = \"auto\" is the GPU: {} (GPU {}); \"cpu\" leaves it alone", gpu->facts.name,
                     gpu->facts.ordinal);
}

Result<const KernelRegistry*> registry_of_device(Env& env, const Config& config) {
  if (config.device != "cuda") return registry_with_plugins(env, config.kernels.plugins);
  HF_TRY(const CudaPresence cuda, needed_cuda(env));
  return &cuda.module->registry();
}

Result<KernelTarget> target_of_device(Env& env, const Config& config) {
  if (config.device != "cuda")
    return KernelTarget{.isa = cpu_isa_of(config.kernels.isa).value_or(best_cpu_isa())};
  HF_TRY(const CudaPresence cuda, needed_cuda(env));
  return target_of(cuda.devices.front());
}

namespace {

// Returns the kernels of a GPU that a run asks for. Those of plug-ins are for the CPU, and are known by their names.
Result<std::vector<KernelPreference>> requests_on_gpu(const KernelRequest& request_of_run,
                                                      const UsableGpu& gpu) {
  for (const KernelPreference& request : request_of_run.requests) {
    if (request.every > 0)
      return fail(
          ExitCode::config,
          "{}: shadows are compared on the CPU, and this run computes on a GPU; take it out, or train with "
          "device = \"cpu\"",
          preference_text(request));
    const Implementation* const found =
        request_of_run.registry->find(request.op, request.name, best_cpu_isa());
    const bool has_gpu =
        gpu.module->registry().find(request.op, request.name, target_of(gpu.facts)) != nullptr;
    if (has_gpu || found == nullptr || found->plugin == nullptr) continue;
    return fail(
        ExitCode::config,
        "{}: the {} is for the CPU, and this run computes on a GPU; take it out of [kernels], or train with "
        "device = \"cpu\"",
        preference_text(request), found->plugin->text);
  }
  return request_of_run.requests;
}

}  // namespace

Result<void> check_device(Env& env, const Config& config, const Origins& origin, const DevicePlace& place) {
  Config resolved = config;
  if (config.device == "auto" && may_have_gpu(env)) {
    const Result<UsableGpu> gpu = usable_gpu(env, config, place);
    if (!gpu.ok() && gpu.error().code == ExitCode::communication) return gpu.error();
  }
  resolve_device(env, resolved, place);
  HF_TRY(const KernelRequest kernels, kernel_request(env, config.kernels, origin));
  HF_TRY_VOID(outcome_of(given_plan(env, resolved)));
  if (resolved.device == "cpu") return settle_kernels(kernels);
  HF_TRY(const UsableGpu gpu, needed(usable_gpu(env, resolved, place)));
  HF_TRY(const std::vector<KernelPreference> requests, requests_on_gpu(kernels, gpu));
  return outcome_of(gpu.module->registry().choose(target_of(gpu.facts), requests));
}

int threads_of_rank(Env& env, const Config& config, int ranks_on_host) {
  if (config.threads > 0) return static_cast<int>(config.threads);
  return std::max(1, env.processor_count() / std::max(1, ranks_on_host));
}

Result<std::unique_ptr<Device>> make_device(Env& env, const Config& config, const Origins& origin,
                                            const DeviceShare& share) {
  HF_TRY(const KernelRequest kernels, kernel_request(env, config.kernels, origin));
  HF_TRY(const ProductAlgorithms plan, given_plan(env, config));
  if (config.device == "cpu") {
    return make_cpu_device({.threads = share.threads,
                            .isa = kernels.isa,
                            .kernels = kernels.requests,
                            .registry = kernels.registry,
                            .runs_at_launch = share.runs_at_launch});
  }
  HF_TRY(const UsableGpu gpu, needed(usable_gpu(env, config, share.place)));
  HF_TRY(const std::vector<KernelPreference> requests, requests_on_gpu(kernels, gpu));
  // Before the device takes memory of the host, which comes from the node of the thread that takes it.
  if (const Result<void> bound = bind_to_gpu(env, gpu.facts); !bound.ok())
    print_message("a rank stays on all processors that it has: {}", bound.error().message);
  HF_TRY(std::unique_ptr<Device> device,
         gpu.module->make_device(
             {.ordinal = gpu.facts.ordinal,
              .kernels = requests,
              .graphs = config.training.cuda_graphs,
              .memory_wait = {.timeout_ms = config.elastic.memory_timeout_ms,
                              .ranks_on_gpu = (share.ranks_on_host + gpu.gpus - 1) / gpu.gpus}}));
  device->prefer_plan(plan);
  return device;
}

}  // namespace holdfast::rank
