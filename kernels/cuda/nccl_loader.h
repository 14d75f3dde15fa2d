// The real NcclLibrary: libnccl, loaded when it is asked for, and the CUDA runtime of this module.
#pragma once

#include <memory>
#include <string>

#include "kernels/nccl_library.h"
#include "runtime/core/result.h"

namespace holdfast::cuda {

// CudaModule::load_nccl. It puts NCCL's settings into the environment, unless they are there: NCCL reads
// nothing else. NCCL_NVLS_ENABLE=0, because NVLS multicast memory does not survive an abort in place, and no
// sum of ours uses it.
Result<std::unique_ptr<NcclLibrary>> load_nccl(const std::string& file);

}  // namespace holdfast::cuda
