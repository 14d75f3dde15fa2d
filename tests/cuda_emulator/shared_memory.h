// Says how much shared memory the emulated GPU allows a block. The limit is that of its architecture, which
// is sm_80 unless EMULATED_GPU_COMPUTE or a test names another (86, 89, 90, 100). Part of it is for
// variables that are __shared__, whose sizes the emulator does not know, and for the system.
#pragma once

#include <cstddef>

namespace holdfast::cuda_emulator {

int compute_capability();  // 80: sm_80
void set_compute_capability(int compute_capability);

// The CUDA programming guide has the most that one block of this architecture may have, static and dynamic.
std::size_t shared_bytes_of_block(int compute_capability);
// Returns the part of it for dynamic memory: kernels of this project have at most 2 KiB beside it.
std::size_t dynamic_shared_bytes(int compute_capability);

// cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize): false when it is more than that.
bool allow_shared_memory(const void* kernel, std::size_t bytes);
// Whether a launch may ask for so much: 48 KiB, more where it was allowed for this kernel.
bool may_have_shared_memory(const void* kernel, std::size_t bytes);

}  // namespace holdfast::cuda_emulator
