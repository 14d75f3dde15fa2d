// GPU limits: the highest rates at which a GPU copies its memory and multiplies large matrices. An op is
// compared with the larger of its bytes at the one rate and its products at the other. Operands that the
// GPU's cache holds come faster than any copy, so a small op may be above its limit.
#pragma once

#include "runtime/core/json.h"
#include "runtime/device/device.h"
#include "runtime/measure/limits.h"
#include "runtime/os/env.h"

namespace holdfast::measure {

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

}  // namespace holdfast::measure
