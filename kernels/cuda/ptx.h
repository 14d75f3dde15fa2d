// The PTX instructions behind the tensor-core kernels: products of bf16 tiles by a warp, the loads that bring
// tiles from shared memory into its registers, and copies from global to shared memory that run by
// themselves. Layouts of fragments: PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix".
//
// Elements of a fragment by lane, with g = lane / 4 and p = 2 * (lane % 4):
//
//   left, 16 x 16, pairs of bf16:  [0] row g, columns p p+1;     [1] row g+8, columns p p+1;
//                                  [2] row g, columns p+8 p+9;   [3] row g+8, columns p+8 p+9
//   right, 16 x 8, pairs of bf16:  [0] rows p p+1, column g;     [1] rows p+8 p+9, column g
//   sum, 16 x 8, fp32:             [0] [1] row g, columns p p+1; [2] [3] row g+8, columns p p+1
//
// On the emulated device (tests/cuda_emulator) the same functions do the same by lanes that wait for each
// other.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/cuda/scalar.h"

namespace holdfast::kernels::cuda {

// Returns the value as one that the compiler knows nothing about: what follows from it is computed where it is
// used, and not kept in registers across a loop that needs all of them.
__device__ inline int forgotten(int value) {
#ifndef HF_CUDA_EMULATED
  asm volatile("" : "+r"(value));
#endif
  return value;
}

#ifdef HF_CUDA_EMULATED

using SharedAddress = std::byte*;

inline SharedAddress shared_address(std::byte* memory) {
  return memory;
}
template <bool transposed>
void load_matrices(unsigned (&fragment)[4], SharedAddress row) {
  cuda_emulator::load_matrices(fragment, row, transposed);
}
inline void multiply_add(float (&sum)[4], const unsigned (&left)[4], unsigned right0, unsigned right1) {
  const unsigned right[2] = {right0, right1};
  cuda_emulator::multiply_bf16(sum, left, right);
}
template <int size>
void copy_async(SharedAddress target, const void* source, bool inside) {
  cuda_emulator::copy_later(target, source, inside ? size : 0, inside ? 0 : size);
}
inline void commit_copies() {
  cuda_emulator::commit_copies();
}
inline void await_copies() {
  cuda_emulator::await_copies(0);
}
inline void tell_count(unsigned* counter, unsigned count) {
  __syncwarp();
  *counter = count;
}
inline void await_count(const unsigned* counter, unsigned count) {
  cuda_emulator::expect_count(counter, count);
}

#else

using SharedAddress = unsigned;  // in the window of shared memory

__device__ inline SharedAddress shared_address(std::byte* memory) {
  return static_cast<unsigned>(__cvta_generic_to_shared(memory));
}

// Loads four 8 x 8 matrices of bf16. Lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i, 16
// bytes each and aligned to that; fragment[i] becomes the lane's pair of matrix i: row g, columns p and p +
// 1, or, where transposed, rows p and p + 1 of column g.
template <bool transposed>
__device__ inline void load_matrices(unsigned (&fragment)[4], SharedAddress row) {
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(row)
                 : "memory");
  }
}

// Computes sum += left * right; products and sums are in fp32, in an order that the hardware fixes.
__device__ inline void multiply_add(float (&sum)[4], const unsigned (&left)[4], unsigned right0,
                                    unsigned right1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

// Starts a copy of `size` bytes (4, or 16 that bypass the first-level cache); zeros are written instead where
// not `inside`, but `source` must be an address of the tensor even then. Both addresses are aligned to
// `size`.
template <int size>
__device__ inline void copy_async(SharedAddress target, const void* source, bool inside) {
  const int bytes = inside ? size : 0;
  if constexpr (size == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(size),
                 "r"(bytes)
                 : "memory");
  }
}
// Ends a group of copies of this thread.
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until all groups of this thread have arrived. Other threads see them after a barrier.
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// Sets a counter in global memory. Who sees the count, sees what all lanes of this warp wrote before.
__device__ inline void tell_count(unsigned* counter, unsigned count) {
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(count) : "memory");
}
// Waits until a counter, which a warp of another block sets, is `count` at least. The block that is waited for
// must be one that runs or has ended: the GPU may begin no other one before this one ends.
__device__ inline void await_count(const unsigned* counter, unsigned count) {
  for (;;) {
    unsigned found;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
    if (found >= count) break;
    __nanosleep(20);
  }
  __syncwarp();
}

#endif

}  // namespace holdfast::kernels::cuda
