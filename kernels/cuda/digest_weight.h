// Weights of the elements of a block in its digest (runtime/core/block_digest.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/core/block_digest.h"

namespace holdfast::kernels::cuda {

// Returns the weight of element `index`, which is below `end`, a power of two.
template <std::uint32_t end>
__device__ std::uint32_t digest_weight(std::uint32_t index) {
  std::uint32_t weight = 1, square = digest_generator;
#pragma unroll
  for (std::uint32_t bit = 1; bit < end; bit *= 2) {
    if ((index & bit) != 0) weight *= square;
    square *= square;
  }
  return weight;
}

}  // namespace holdfast::kernels::cuda
