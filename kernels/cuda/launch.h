// Starts kernels, and cuts work into blocks.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/context.h"
#include "runtime/core/check.h"

namespace holdfast::kernels::cuda {

struct Grid {
  dim3 blocks;
  int threads = 256;
  std::size_t shared_bytes = 0;  // dynamic; launch() requests more than 48 KiB from the runtime
};

// Launches a kernel. Arguments are converted to the kernel's parameter types. Errors are kept by the context.
// A grid without blocks is a no-op.
template <typename... Parameters, typename... Values>
void launch(Context& context, void (*kernel)(Parameters...), const Grid& grid, const Values&... values) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  constexpr std::size_t shared_bytes_unasked = 48 << 10;
  if (grid.shared_bytes > shared_bytes_unasked) {
    context.note(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(grid.shared_bytes)),
                 "cudaFuncSetAttribute");
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = context.stream();
  context.note(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(values)...), "cudaLaunchKernelEx");
}

inline unsigned blocks_for(std::int64_t items, std::int64_t items_per_block) {
  const std::int64_t blocks = (items + items_per_block - 1) / items_per_block;
  HF_CHECK(blocks >= 0 && blocks <= 0x7fffffff, "a grid of {} blocks", blocks);
  return static_cast<unsigned>(blocks);
}

// Calls body with `count` as a constant: a power of two, at most `largest`.
template <int largest, typename Body>
void for_power_of_two(std::int64_t count, const Body& body) {
  if constexpr (largest == 1) {
    HF_CHECK(count == 1, "a count that is no power of two, or too large");
    body(std::integral_constant<int, 1>{});
  } else {
    count == largest ? body(std::integral_constant<int, largest>{})
                     : for_power_of_two<largest / 2>(count, body);
  }
}

// Returns the dynamic shared memory of the block; 16-byte aligned.
__device__ inline std::byte* dynamic_shared() {
#ifdef HF_CUDA_EMULATED
  return cuda_emulator::dynamic_shared_memory();
#else
  extern __shared__ uint4 hf_dynamic_shared[];
  return reinterpret_cast<std::byte*>(hf_dynamic_shared);
#endif
}

}  // namespace holdfast::kernels::cuda
