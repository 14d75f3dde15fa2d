// Tests whether the instructions that only sm_90a has run on this GPU, by one product of a warpgroup (wgmma)
// over operands in shared memory, which it reads by the asynchronous proxy. The kernels of this folder build
// on the same, and so do files of kernels/cuda/custom whose names end in .sm_90a.cu.
#pragma once

#include <cuda_runtime.h>

namespace holdfast::kernels::cuda {

// Puts the trial on the stream: *target = trial_answer (kernels/cuda/trial_kernel.h) if all elements of the
// product are right, else 0. `target`: memory that the host and the device see. For GPUs of compute
// capability 9.0.
cudaError_t launch_warpgroup_trial(cudaStream_t stream, int* target);

}  // namespace holdfast::kernels::cuda
