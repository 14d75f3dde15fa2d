// Loads the real NcclLibrary: libnccl, loaded on request, and the CUDA runtime of this module.
#pragma once

#include <memory>
#include <string>

#include "runtime/core/result.h"
#include "runtime/device/nccl_library.h"

namespace holdfast::device {

// Implements CudaModule::load_nccl. It does not change the environment, which NCCL reads when it is first
// used: its variables are set at the start of the process (parallel/nccl/nccl_environment.h).
Result<std::unique_ptr<NcclLibrary>> load_nccl(const std::string& file);

}  // namespace holdfast::device
