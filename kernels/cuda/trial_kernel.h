// The first kernel that a GPU is asked to run (kernels/cuda/trial.h).
#pragma once

#include <cuda_runtime.h>

namespace holdfast::inline kernels::cuda {

// *target = trial_answer, put on the stream. `target`: memory that the host and the device see.
inline constexpr int trial_answer = 42;
cudaError_t launch_trial(cudaStream_t stream, int* target);

}  // namespace holdfast::inline kernels::cuda
