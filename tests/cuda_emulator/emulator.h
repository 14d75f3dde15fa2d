// Runs CUDA kernels on the CPU, so that machines without a GPU can test them: the sources of kernels/cuda and
// runtime/device/cuda are compiled as plain C++ against include/cuda_runtime.h of this folder, and each
// thread of a block becomes a fiber. It shows that a kernel computes the right thing for every shape, that it
// never reads what another thread may not have written yet (fibers run in several orders; the bits must be
// the same), that all threads reach the same barriers, and that shared memory and grids stay within a
// device's limits. It says nothing about speed, and its memory is sequentially consistent.
//
// This header is what the emulated intrinsics are made of; kernels never include it by name.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace holdfast::cuda_emulator {

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
};

struct Launch {
  const char* what = "kernel";  // for messages
  Index3 grid, block;
  std::size_t shared_bytes = 0;
};

// Runs body() once for every thread of every block, one block after another. Deadlocks (threads of a block
// that wait for each other) end the process with a list of who waits where.
void run_grid(const Launch& launch, const std::function<void()>& body);

// The order in which the fibers of a block and the blocks of a grid take turns: 0 is ascending, 1 descending,
// any other number a shuffle of its own.
void set_order(std::uint64_t order);

// How often the program has asked the runtime and cuBLASLt for something to keep or to decide.
struct Counts {
  std::uint64_t allocations = 0, events = 0, descriptors = 0, heuristics = 0, graphs = 0;
  bool operator==(const Counts&) const = default;
};
struct Made {
  std::atomic<std::uint64_t> allocations, events, descriptors, heuristics, graphs;
  Counts counts() const { return {allocations, events, descriptors, heuristics, graphs}; }
};
Made& made();

// Returns the GPUs on which calls have made a context since the last time, a bit for each.
std::uint64_t take_contexts();

// The memory of the device from now on; returns what it had. From the environment: EMULATED_GPU_BYTES.
std::size_t resize_device(std::size_t bytes);

// Another process holds so much of the device's memory until it has been refused `refusals` times: one that
// was killed and is not torn down yet. Also from the environment: EMULATED_GPU_HELD_BYTES and
// EMULATED_GPU_HELD_REFUSALS.
void hold_memory(std::size_t bytes, int refusals);

// The system refuses pinned memory so many times from now on. From the environment: EMULATED_GPU_PINNED_REFUSALS.
void refuse_pinned_memory(int refusals);

// A cuBLASLt of another version than the one that the tests know.
struct LibraryQuirks {
  bool in_place_sums_first = false;  // the best answer adds parts in any order, though that was masked out
  bool in_place_sums_alone = false;  // and there is no other answer
  bool reports_sums_alone = false;   // of an algorithm's attributes only how it adds parts
  bool reports_nothing = false;
  bool refuses_preferences = false;
};
LibraryQuirks& library_quirks();

// Below: only inside body().

Index3 thread_index();
Index3 block_index();
Index3 block_size();
Index3 grid_size();
// 16-byte aligned, filled with NaNs before each block.
std::byte* dynamic_shared_memory();
// The same memory, as it is seen while its pages are protected from the kernel (hopper.h).
std::byte* open_shared_memory();
// Returns when all threads of the block that have not ended are here.
void block_barrier();
// Returns when holds() is true; other threads run meanwhile. where(): what is waited for, if that never happens.
void wait_until(const std::function<bool()>& holds, const std::function<std::string()>& where);
int thread_number();  // in its block
const Launch& launched();
// Ends the process with a sentence about the thread that runs.
[[noreturn]] void stop_kernel(const std::string& sentence);

// One lane's part in something that lanes of a warp do together. When every lane of `mask` has called it,
// combine(lanes) runs once with each lane's `mine` (null outside of the mask), and all return.
inline constexpr int warp_lanes = 32;
using Combine = void (*)(void* const lanes[warp_lanes]);
void warp_together(std::uint32_t mask, void* mine, Combine combine);
int lane_index();

// cp.async: copies that arrive when they are waited for; in order 1 at once, because they may also overtake
// those who still read what was there.
void copy_later(void* target, const void* source, std::size_t bytes, std::size_t zero_bytes);
void commit_copies();
void await_copies(int groups_left);

// A block may wait only for what blocks that began before it have done. Here they have ended, so a counter that
// is not `count` at least would be waited for for ever: it ends the process with a sentence.
void expect_count(const unsigned* counter, unsigned count);

// ldmatrix (four matrices) and mma.m16n8k16 of bf16 with fp32 sums, with the fragments of kernels/cuda/ptx.h.
// Whole warps only.
void load_matrices(unsigned (&fragment)[4], const std::byte* row, bool transposed);
void multiply_bf16(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2]);

}  // namespace holdfast::cuda_emulator
