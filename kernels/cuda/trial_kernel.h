// The first kernel that runs on a GPU (runtime/device/cuda/trial.h).
#pragma once

#include <cuda_runtime.h>

namespace holdfast::kernels::cuda {

// Puts *target = trial_answer on the stream. `target` is memory that the host and the device see.
inline constexpr int trial_answer = 42;
cudaError_t launch_trial(cudaStream_t stream, int* target);

}  // namespace holdfast::kernels::cuda
