#include "runtime/measure/measured_device.h"

#include <fmt/core.h>

#include "runtime/core/units.h"
#include "runtime/measure/host_limits.h"
#include "runtime/measure/report.h"
#include "runtime/rank/device_choice.h"

namespace holdfast::measure {

Result<MeasuredDevice> MeasuredDevice::find(Env& env, const MeasuredDeviceOptions& options) {
  MeasuredDevice bench(env, options.threads);
  if (!options.gpu) return bench;
  HF_TRY(CudaPresence cuda, needed_cuda(env));
  bench.gpu_ = Gpu{.module = cuda.module, .facts = std::move(cuda.devices.front()), .rates = {}};
  HF_TRY(const std::unique_ptr<Device> device, bench.make({}, nullptr));
  HF_TRY(bench.gpu_->rates, measure_gpu_rates(env, *device));
  return bench;
}

const KernelRegistry& MeasuredDevice::registry() const {
  return is_gpu() ? gpu_->module->registry() : kernel_registry();
}

KernelTarget MeasuredDevice::target() const {
  return is_gpu() ? target_of(gpu_->facts) : KernelTarget{.isa = best_cpu_isa()};
}

Result<std::unique_ptr<Device>> MeasuredDevice::make(std::vector<KernelPreference> requests, OpTimer* timer,
                                                     CpuIsa isa) const {
  if (is_gpu()) {
    CudaDeviceOptions options{.ordinal = gpu_->facts.ordinal, .kernels = std::move(requests)};
    if (timer != nullptr) timer->attach(options);
    return gpu_->module->make_device(options);
  }
  CpuDeviceOptions options{.threads = threads_, .isa = isa, .kernels = std::move(requests)};
  if (timer != nullptr) timer->attach(options);
  return make_cpu_device(options);
}

std::unique_ptr<Limits> MeasuredDevice::limits(std::int64_t duration_ms) const {
  if (is_gpu()) return std::make_unique<GpuLimits>(gpu_->rates, gpu_->facts.l2_bytes);
  return std::make_unique<HostLimits>(*env_, threads_, duration_ms);
}

std::string MeasuredDevice::line() const {
  if (!is_gpu()) return machine_line(*env_);
  const CudaFacts& facts = gpu_->facts;
  return fmt::format(
      "{}, sm_{}{}, {} multiprocessors, L2 {}, memory {}\nit copies {:.0f} GB/s and multiplies {:.1f} "
      "TFLOP/s in fp32, {:.1f} in bf16",
      facts.name, facts.compute_major, facts.compute_minor, facts.multiprocessors,
      format_bytes(facts.l2_bytes), format_bytes(facts.memory_bytes),
      gpu_->rates.copied_bytes_per_second * 1e-9, gpu_->rates.fp32_flops_per_second * 1e-12,
      gpu_->rates.bf16_flops_per_second * 1e-12);
}

void MeasuredDevice::describe(Json& result) const {
  if (is_gpu()) {
    result["gpu"] = {{"name", gpu_->facts.name}};
    result["gpu"].update(rates_json(gpu_->rates));
  } else {
    result["threads"] = threads_;
  }
}

std::string MeasuredDevice::threads_text() const {
  return is_gpu() ? "" : fmt::format(", {} threads", threads_);
}

}  // namespace holdfast::measure
