// The real NCCL, as the CUDA module of this build gives it; the loader's sentence where there is none.
#pragma once

#include <fmt/core.h>

#include <memory>
#include <string>

#include "parallel/nccl/nccl_environment.h"
#include "runtime/device/cuda_loader.h"

namespace holdfast::test {

// With the environment of a run, which NCCL reads when it is first used.
inline Result<std::unique_ptr<NcclLibrary>> load_real_nccl(const std::string& file = nccl_library_file) {
  HF_TRY(const CudaModule* module,
         load_cuda_module(fmt::format("{}/bin/{}", HF_BINARY_DIR, cuda_module_file)));
  set_nccl_variables(posix_env());
  return module->load_nccl(file);
}

}  // namespace holdfast::test
