// Emulates what compute capability 9.0 does beside its threads: mbarriers, copies of boxes of a tensor
// (TMA), named barriers, and products of a warpgroup (wgmma). kernels/cuda/sm_90a/warpgroup.h has the
// instructions.
//
// A copy arrives as late as allowed in order 0 of set_order() (when no thread can go on without it), at once
// in order 1, and else at random moments, in pieces and in any order. A product reads its operands in shared
// memory as late, as early, or at random between; its sums are there when the thread has waited for them.
// What a GPU answers with wrong numbers or a hang ends the process with a sentence:
//
//   - shared memory that a copy in flight will write is read or written (by pages of 4 KiB; smaller targets
//     are full of NaNs until the copy arrives), or that a product in flight reads is written
//   - an accumulator is used before it was waited for (on x86: any arithmetic with it), or changed, or a wait does
//     not name it, so that the compiler may use it earlier
//   - bytes of copies and of expectations of an mbarrier differ; too many arrivals; a phase that never
//     completes
//   - ordinary stores that the asynchronous proxy reads without fence.proxy.async after them
//   - registers of a product without wgmma.fence
//   - work in flight when the block ends
//
// Matrix descriptors and the 128-byte swizzle are those of the hardware, bit by bit: a wrong one gives wrong
// numbers, or leads out of the block's memory. Matrices lie in dynamic shared memory that was asked for with
// aligned_shared().
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace holdfast::cuda_emulator {

// Returns dynamic shared memory whose address in the window of shared memory is a multiple of 1024.
std::byte* aligned_shared();
// Returns the address in the window of shared memory, where dynamic memory starts at 1024.
unsigned window_address(const std::byte* memory);

// mbarrier.init, .arrive (with .expect_tx where bytes > 0) and .try_wait.parity until it is true.
void set_barrier(std::byte* barrier, unsigned arrivals);
void arrive(std::byte* barrier, unsigned expected_bytes);
void await_phase(std::byte* barrier, unsigned parity);
void fence_async_proxy();

// barrier.sync, or barrier.arrive where not `waits`.
void named_barrier(int id, int threads, bool waits);
void set_registers(int count);

// cp.async.bulk.tensor.3d into shared memory. `map`: what cuTensorMapEncodeTiled() made.
void copy_box(std::byte* target, const void* map, const int (&first)[3], std::byte* barrier);

// wgmma.mma_async.m64nNk16 of bf16 with fp32 sums. The left matrix is in registers or described.
struct WarpgroupProduct {
  int columns = 0;
  const unsigned* left_fragment = nullptr;
  std::uint64_t left = 0, right = 0;
  bool left_transposed = false,
       right_transposed = false;  // neighbours across the sum are neighbours in memory
  bool add = false;
};
void fence_products();
void multiply_later(float* sums, const WarpgroupProduct& product);
void commit_products();
// `named`: the accumulators of the products that have finished then, all of them and no others.
void await_products(int groups_left, std::initializer_list<const float*> named);

// Below: for the scheduler of fibers (emulator.cc).

void begin_asynchronous(std::uint64_t order, unsigned block);
// Lets what is in flight go on by chance.
void drift();
// Completes something that is in flight; false = there is nothing.
bool complete_something();
// Ends the process if anything is left.
void end_asynchronous();
// Around the turn of a thread: arithmetic with its accumulators in flight is an error meanwhile.
void watch_accumulators(unsigned thread);
void stop_watching();

}  // namespace holdfast::cuda_emulator
