// The real NcclLibrary: libnccl, loaded when it is asked for, and the CUDA runtime of this module.
#pragma once

#include <memory>
#include <string>

#include "kernels/nccl_library.h"
#include "runtime/core/result.h"

namespace holdfast::inline kernels::cuda {

// CudaModule::load_nccl. It leaves the environment alone, which NCCL reads when it is first used: what must
// be in there is set at the start of the process (parallel/nccl/nccl_environment.h).
Result<std::unique_ptr<NcclLibrary>> load_nccl(const std::string& file);

}  // namespace holdfast::inline kernels::cuda
