// Converts errors of the CUDA runtime to results.
#pragma once

#include <cuda_runtime.h>
#include <fmt/core.h>

#include "runtime/core/result.h"
#include "runtime/device/cuda_error.h"

namespace holdfast::device {

// Returns a text such as "cudaMalloc on GPU 0: out of memory (cudaErrorMemoryAllocation)", with what a user can
// do about it where the machine is the reason; callers add context before and after it.
inline std::string sentence_of(cudaError_t error, const char* operation) {
  return fmt::format("{}: {} ({}){}", operation, cudaGetErrorString(error), cudaGetErrorName(error),
                     remedy_of_cuda_error(error));
}

inline Result<void> check(cudaError_t error, const char* operation) {
  if (error == cudaSuccess) return {};
  return with_reach(Reach::host, fail(ExitCode::config, "CUDA: {}", sentence_of(error, operation)));
}

}  // namespace holdfast::device
