#include "runtime/measure/gpu_limits.h"

#include <algorithm>

#include "kernels/elementwise.h"
#include "runtime/measure/gemm_peak.h"

namespace holdfast::measure {
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
