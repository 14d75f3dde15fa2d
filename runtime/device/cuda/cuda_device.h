// The CUDA device: one stream of one GPU, a workspace, and the table of kernels.
#pragma once

#include <memory>
#include <vector>

#include "runtime/device/cuda_loader.h"

namespace holdfast::device {

Result<std::vector<CudaFacts>> cuda_devices();
Result<CudaFacts> cuda_facts_of(int ordinal);
Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options);

}  // namespace holdfast::device
