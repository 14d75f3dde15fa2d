#include "runtime/measure/measured_device.h"

#include <fmt/core.h>
#include <algorithm>

#include "kernels/elementwise.h"
#include "runtime/core/units.h"
#include "runtime/measure/gemm_peak.h"
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

Result<std::unique_ptr<Device>> MeasuredDevice::make(const KernelRequest& kernels, OpTimer* timer) const {
  if (is_gpu()) {
    CudaDeviceOptions options{.ordinal = gpu_->facts.ordinal, .kernels = kernels.requests};
    if (timer != nullptr) timer->attach(options);
    return gpu_->module->make_device(options);
  }
  CpuDeviceOptions options{
      .threads = threads_, .isa = kernels.isa, .kernels = kernels.requests, .registry = kernels.registry};
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

namespace {

constexpr int gpu_rounds = 5;  // the best counts: a limit that is too low makes kernels look good

// Copies as many bytes as it takes until starting a copy costs nothing beside it; an emulated GPU copies few.
Result<double> copy_rate(Env& env, Device& device) {
  constexpr std::int64_t smallest_bytes = std::int64_t{1} << 20, largest_bytes = std::int64_t{1} << 30;
  constexpr std::int64_t long_ns = 400'000;
  constexpr int copies = 10;
  for (std::int64_t bytes = smallest_bytes;; bytes *= 2) {
    MemoryPlan plan;
    const MemoryPlan::Slot source =
        plan.reserve("source", MemoryClass::workspace, static_cast<std::uint64_t>(bytes));
    const MemoryPlan::Slot target =
        plan.reserve("target", MemoryClass::workspace, static_cast<std::uint64_t>(bytes));
    HF_TRY(const MemoryArena arena, allocate_memory(device, plan));
    const auto run_ns = [&](int count) {
      const std::int64_t begin_ns = env.monotonic_ns();
      for (int i = 0; i < count; ++i) {
        device.launch(Copy{
            .source = arena.at<std::byte>(source), .target = arena.at<std::byte>(target), .bytes = bytes});
      }
      device.synchronize();
      return std::max<std::int64_t>(1, env.monotonic_ns() - begin_ns);
    };
    run_ns(1);
    if (bytes < largest_bytes && run_ns(1) < long_ns) continue;
    std::int64_t best_ns = run_ns(copies);
    for (int round = 1; round < gpu_rounds; ++round) best_ns = std::min(best_ns, run_ns(copies));
    HF_TRY_VOID(device.status());
    return 2.0 * static_cast<double>(bytes) * copies / (static_cast<double>(best_ns) * 1e-9);
  }
}

Result<double> best_product_rate(Env& env, Device& device, DType dtype) {
  constexpr std::int64_t round_ns = 20'000'000;
  HF_TRY(GemmPeak peak, GemmPeak::make(env, device, dtype));
  double best = 0.0;
  for (int round = 0; round < gpu_rounds; ++round) best = std::max(best, peak.rate(round_ns));
  HF_TRY_VOID(device.status());
  return best;
}

}  // namespace

Result<GpuRates> measure_gpu_rates(Env& env, Device& device) {
  GpuRates rates;
  HF_TRY(rates.copied_bytes_per_second, copy_rate(env, device));
  HF_TRY(rates.fp32_flops_per_second, best_product_rate(env, device, DType::fp32));
  HF_TRY(rates.bf16_flops_per_second, best_product_rate(env, device, DType::bf16));
  return rates;
}

Json rates_json(const GpuRates& rates) {
  return {{"copied_bytes_per_sec", rates.copied_bytes_per_second},
          {"fp32_flops_per_sec", rates.fp32_flops_per_second},
          {"bf16_flops_per_sec", rates.bf16_flops_per_second}};
}

Result<double> GpuLimits::stream_seconds(const OpCost& cost) {
  return static_cast<double>(cost.bytes_moved()) / rates_.copied_bytes_per_second;
}

double GpuLimits::product_seconds(const Matmul& shape) {
  const OpCost cost = cost_of(shape);
  return std::max(static_cast<double>(cost.bytes_moved()) / rates_.copied_bytes_per_second,
                  cost.flops / product_rate(shape.dtype));
}

double GpuLimits::product_rate(DType dtype) {
  return dtype == DType::bf16 ? rates_.bf16_flops_per_second : rates_.fp32_flops_per_second;
}

}  // namespace holdfast::measure
