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
#include "runtime/measure/gpu_limits.h"
#include "runtime/measure/limits.h"
#include "runtime/measure/op_timer.h"
#include "runtime/os/env.h"

namespace holdfast::measure {

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
  // `timer` (null = none) sees every op; it outlives the device. The requests are names of registry().
  Result<std::unique_ptr<Device>> make(std::vector<KernelPreference> requests, OpTimer* timer,
                                       CpuIsa isa = best_cpu_isa()) const;
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
