// MeasuredDevice: the device that ops are measured on, and the limits that they are compared with.
//
//   HF_TRY(const MeasuredDevice bench, MeasuredDevice::find(env, {.gpu = true}));
//   OpTimer timer(env);                                  // outlives the device
//   HF_TRY(const std::unique_ptr<Device> device, bench.make({}, &timer));
//   const std::unique_ptr<Limits> limits = bench.limits(60);
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/device/cuda_loader.h"
#include "runtime/device/device.h"
#include "runtime/measure/host_limits.h"
#include "runtime/measure/op_timer.h"
#include "runtime/os/env.h"
#include "runtime/rank/kernel_choice.h"

namespace holdfast::measure {

// GPU limits: the highest rates at which a GPU copies its memory and multiplies large matrices. An op is
// compared with the larger of its bytes at the one rate and its products at the other. Operands that the
// GPU's cache holds come faster than any copy, so a small op may be above its limit.
struct GpuRates {
  double copied_bytes_per_second = 0.0;  // read plus written
  double fp32_flops_per_second = 0.0;
  double bf16_flops_per_second = 0.0;
};
// Takes and gives back up to 2 GiB of the device's memory. ExitCode::does_not_fit when there is less.
Result<GpuRates> measure_gpu_rates(Env& env, Device& device);
Json rates_json(const GpuRates& rates);

class GpuLimits final : public Limits {
 public:
  GpuLimits(const GpuRates& rates, std::uint64_t l2_bytes) : rates_(rates), l2_bytes_(l2_bytes) {}

  Result<double> stream_seconds(const OpCost& cost) override;
  double product_seconds(const Matmul& shape) override;
  double product_rate(DType dtype) override;
  void forget() override {}
  std::string level_of(std::uint64_t bytes) const override { return bytes <= l2_bytes_ ? "L2" : "DRAM"; }
  std::string_view product_name() const override { return "the rate of one large product"; }

 private:
  GpuRates rates_;
  std::uint64_t l2_bytes_;
};

struct MeasuredDeviceOptions {
  bool gpu = false;  // the first one that this process sees, instead of the CPU
  int threads = 1;   // of the CPU
};

class MeasuredDevice {
 public:
  // Finds the device, and measures the limits of a GPU here, while its memory is free. ExitCode::config with
  // a sentence where there is none.
  static Result<MeasuredDevice> find(Env& env, const MeasuredDeviceOptions& options);

  bool is_gpu() const { return gpu_.has_value(); }
  const KernelRegistry& registry() const;
  KernelTarget target() const;  // what its kernels are chosen for
  // `timer` (null = none) sees every op; it outlives the device. The names that are requested are those of registry(),
  // or of plug-ins.
  Result<std::unique_ptr<Device>> make(const KernelRequest& kernels, OpTimer* timer) const;
  // Measurements of the CPU take about duration_ms each.
  std::unique_ptr<Limits> limits(std::int64_t duration_ms) const;

  // Describes the machine and its GPU in one line, which every reported figure needs. For documents:
  // describe().
  std::string line() const;
  // Adds "threads", or "gpu" with its rates.
  void describe(Json& result) const;
  std::string threads_text() const;  // ", 2 threads"; nothing for a GPU

 private:
  struct Gpu {
    const CudaModule* module = nullptr;
    CudaFacts facts;
    GpuRates rates;
  };
  MeasuredDevice(Env& env, int threads) : env_(&env), threads_(threads) {}

  Env* env_;
  int threads_;
  std::optional<Gpu> gpu_;
};

}  // namespace holdfast::measure
