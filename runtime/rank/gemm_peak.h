// GemmPeak measures the rate that this rank's device reaches on one large matrix product. It is the reference
// of the console's "gemm" share.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/device.h"
#include "runtime/core/tensor.h"
#include "runtime/os/env.h"

namespace holdfast::inline rank {

class GemmPeak {
 public:
  // Makes an n x n x n product in `dtype` and runs it once, because the first run creates what the later ones
  // need. Allocates its own memory, so call it before the first step. ExitCode::does_not_fit when there is no
  // memory for it. The device outlives it.
  static Result<GemmPeak> make(Env& env, Device& device, DType dtype);
  GemmPeak(GemmPeak&&) noexcept;
  ~GemmPeak();

  // Returns the FLOP/s measured over at least `duration_ns`. All ranks call it at the same time, so that
  // shared cores are counted once.
  double rate(std::int64_t duration_ns);

 private:
  class SquareProduct;
  GemmPeak(Env& env, std::unique_ptr<SquareProduct> product, std::int64_t first_ns, int products_at_once);

  Env* env_;
  std::unique_ptr<SquareProduct> product_;
  std::int64_t first_ns_;  // duration of the first product
  int products_at_once_;
};

}  // namespace holdfast::inline rank
