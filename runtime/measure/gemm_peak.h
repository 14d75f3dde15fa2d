// GemmPeak measures the rate that this rank's device reaches on one large matrix product. It is the reference
// of the console's "gemm" share.
#pragma once

#include <cstdint>

#include "kernels/matmul.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/tensor.h"
#include "runtime/device/device.h"
#include "runtime/os/env.h"

namespace holdfast::measure {

class GemmPeak {
 public:
  // Makes an n x n x n product in `dtype` and runs it once, because the first run creates what the later ones
  // need. Allocates its own memory, so call it before the first step. ExitCode::does_not_fit when there is no
  // memory for it. The device outlives it.
  static Result<GemmPeak> make(Env& env, Device& device, DType dtype);

  // Returns the FLOP/s measured over at least `duration_ns`. All ranks call it at the same time, so that
  // shared cores are counted once.
  double rate(std::int64_t duration_ns);

 private:
  // Makes an n x n x n product of random numbers.
  static Result<GemmPeak> of_size(Env& env, Device& device, DType dtype, std::int64_t n);
  GemmPeak(Env& env, Device& device) : env_(&env), device_(&device) {}
  std::int64_t run_ns(int products = 1);
  double rate(double products, std::int64_t time_ns) const;

  Env* env_;
  Device* device_;
  MemoryArena arena_;
  Matmul op_;
  std::int64_t first_ns_ = 0;  // duration of the first product
};

}  // namespace holdfast::measure
