// The rows of a batch in the order of their tokens, and of equal tokens in the order of rows: who adds
// gradients by token then knows all rows of a token, without atomics.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/context.h"

namespace holdfast::inline kernels::cuda {

// Compares by token first. No two are equal, so there is one order, however it is found.
using TokenRow = unsigned long long;
__device__ inline std::uint32_t token_of(TokenRow key) {
  return static_cast<std::uint32_t>(key >> 32);
}
__device__ inline std::uint32_t row_of(TokenRow key) {
  return static_cast<std::uint32_t>(key);
}

// Of the workspace that sort_tokens needs, from its beginning.
std::size_t sort_bytes(std::int64_t rows);

// tokens: (rows), none negative. The result is (rows), in the workspace.
const TokenRow* sort_tokens(Context& context, const std::int32_t* tokens, std::int64_t rows);

}  // namespace holdfast::inline kernels::cuda
