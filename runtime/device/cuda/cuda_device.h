// The CUDA device: one stream of one GPU, a workspace, and the table of kernels.
#pragma once

#include <memory>
#include <vector>

#include "runtime/device/cuda_loader.h"

namespace holdfast::inline kernels::cuda {

Result<std::vector<CudaFacts>> devices();
Result<CudaFacts> facts_of(int ordinal);
Result<std::unique_ptr<Device>> make_device(const CudaDeviceOptions& options);

}  // namespace holdfast::inline kernels::cuda
