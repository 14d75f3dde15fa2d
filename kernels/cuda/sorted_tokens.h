// Sorts the rows of a batch by their tokens, and rows of equal tokens by row: code that adds gradients by
// token then has all rows of a token together, without atomics.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/context.h"

namespace holdfast::kernels::cuda {

// A key that compares by token first. No two are equal, so the order is unique.
using TokenRow = unsigned long long;
__device__ inline std::uint32_t token_of(TokenRow key) {
  return static_cast<std::uint32_t>(key >> 32);
}
__device__ inline std::uint32_t row_of(TokenRow key) {
  return static_cast<std::uint32_t>(key);
}

// Returns the bytes of workspace that sort_tokens needs, from its beginning.
std::size_t sort_bytes(std::int64_t rows);

// Sorts `tokens`: (rows), none negative. The result is (rows), in the workspace.
const TokenRow* sort_tokens(Context& context, const std::int32_t* tokens, std::int64_t rows);

}  // namespace holdfast::kernels::cuda
