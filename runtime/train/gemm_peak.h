// The rate this rank's device reaches on one large matrix product, as the yardstick of the console's "gemm"
// share.
#pragma once

#include "kernels/device.h"
#include "runtime/core/env.h"
#include "runtime/core/tensor.h"

namespace holdfast {

// FLOP/s of n x n x n products in `dtype`, for about 60 ms. Ranks call it at the same time, so that shared
// cores are counted once. Allocates its own memory; call it before the first step. ExitCode::does_not_fit
// when there is none.
Result<double> measure_gemm_peak(Env& env, Device& device, DType dtype);

}  // namespace holdfast
