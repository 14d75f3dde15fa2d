// The instructions of compute capability 9.0 alone (sm_90a) behind kernels of this folder: products of a
// warpgroup of four warps (wgmma), which run beside its threads; copies of boxes of a tensor into shared
// memory (TMA), which run beside all threads; mbarriers that tell of their arrival; barriers of some warps;
// registers given from one warpgroup to another. PTX ISA: "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions", "mbarrier", "cp.async.bulk.tensor".
//
// Sums of a product of 64 x 8 n: sums[i] has the fragment of columns 8 i to 8 i + 7 as in
// kernels/cuda/ptx.h, of rows 16 w to 16 w + 15 in warp w of the warpgroup; left operands in registers are
// those of ptx.h, too.
//
// On the emulated device (tests/cuda_emulator/hopper.h) the same functions do the same as late as the
// hardware may, and report what a GPU answers with wrong numbers or a hang.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx.h"

namespace holdfast::kernels::cuda {

inline constexpr int warpgroup_threads = 128;

// Layout of a matrix of bf16 in shared memory. `none`: core matrices of 8 rows of 16 bytes, one row after
// another. `rows_of_128`: rows of 128 bytes, 8 of them after one another in 1024 aligned bytes, whose pieces
// of 16 bytes lie at position piece ^ (row % 8): as a copy of a box of 64 columns brings them.
enum class Swizzle : unsigned { none = 0, rows_of_128 = 1 };

#ifdef HF_CUDA_EMULATED

inline std::byte* aligned_shared() {
  return cuda_emulator::aligned_shared();
}
inline unsigned window_address(SharedAddress memory) {
  return cuda_emulator::window_address(memory);
}
inline void set_barrier(SharedAddress barrier, unsigned arrivals) {
  cuda_emulator::set_barrier(barrier, arrivals);
}
inline void fence_async_proxy() {
  cuda_emulator::fence_async_proxy();
}
inline void arrive(SharedAddress barrier) {
  cuda_emulator::arrive(barrier, 0);
}
inline void arrive_expecting(SharedAddress barrier, unsigned bytes) {
  cuda_emulator::arrive(barrier, bytes);
}
inline void await_phase(SharedAddress barrier, unsigned parity) {
  cuda_emulator::await_phase(barrier, parity);
}
inline void copy_box(SharedAddress target, const CUtensorMap& map, int x, int y, int z,
                     SharedAddress barrier) {
  cuda_emulator::copy_box(target, &map, {x, y, z}, barrier);
}
inline void sync_threads(int id, int threads) {
  cuda_emulator::named_barrier(id, threads, true);
}
inline void arrive_threads(int id, int threads) {
  cuda_emulator::named_barrier(id, threads, false);
}
template <int registers>
void take_registers() {
  cuda_emulator::set_registers(registers);
}
template <int registers>
void give_registers() {
  cuda_emulator::set_registers(registers);
}
inline void fence_products() {
  cuda_emulator::fence_products();
}
inline void commit_products() {
  cuda_emulator::commit_products();
}
template <int groups_left, int... n>
void await_products(float (&... sums)[n][4]) {
  cuda_emulator::await_products(groups_left, {&sums[0][0]...});
}
template <bool right_transposed, bool left_transposed = false, int n>
void multiply_shared(float (&sums)[n][4], std::uint64_t left, std::uint64_t right, bool add) {
  cuda_emulator::multiply_later(&sums[0][0], {.columns = 8 * n,
                                              .left = left,
                                              .right = right,
                                              .left_transposed = left_transposed,
                                              .right_transposed = right_transposed,
                                              .add = add});
}
template <bool right_transposed, int n>
void multiply_registers(float (&sums)[n][4], const unsigned (&left)[4], std::uint64_t right) {
  cuda_emulator::multiply_later(&sums[0][0], {.columns = 8 * n,
                                              .left_fragment = left,
                                              .right = right,
                                              .right_transposed = right_transposed,
                                              .add = true});
}

#else

// Returns the dynamic shared memory of the block, aligned as swizzled tiles want it.
__device__ inline std::byte* aligned_shared() {
  extern __shared__ __align__(1024) std::byte hf_aligned_shared[];
  return hf_aligned_shared;
}
__device__ inline unsigned window_address(SharedAddress memory) {
  return memory;
}

// Makes an mbarrier, 8 bytes, whose phases complete after so many arrivals and all bytes that were expected.
// One thread does it, calls fence_async_proxy(), and a barrier of the block lets the others use it.
__device__ inline void set_barrier(SharedAddress barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes ordinary stores of this thread to shared memory visible to copies and products (the asynchronous
// proxy). Other threads' copies and products see them after a barrier.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void arrive(SharedAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and makes the phase wait for so many bytes of copies, which start afterwards.
__device__ inline void arrive_expecting(SharedAddress barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Waits until the phase of this parity is complete: the current one, or the one before it (of a new barrier
// that is the phase of parity 1).
__device__ inline void await_phase(SharedAddress barrier, unsigned parity) {
  unsigned complete;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(complete)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (complete == 0);
}
// Starts the copy of a box (map_rows()) whose first element is at (x, y, z); zeros where that is outside of
// the tensor. Its bytes count at the barrier. By one thread. `target`: aligned to 1024 bytes.
__device__ inline void copy_box(SharedAddress target, const CUtensorMap& map, int x, int y, int z,
                                SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4}], [%5];" ::"r"(target),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}

// Barrier `id` (1 to 15) of so many threads of the block, in whole warps: waits for the others, or only lets
// them go on.
__device__ inline void sync_threads(int id, int threads) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void arrive_threads(int id, int threads) {
  asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Sets the registers of each thread of the warpgroup, a multiple of 8: more than before, or less. All its
// warps call.
template <int registers>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// Comes between what a thread does with the registers of a product, sums or left operand, and the product.
__device__ inline void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Ends a group of products.
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until only the newest `groups_left` groups of products may be unfinished. `sums`: of all that have
// finished, so that the compiler takes them for new values.
template <int groups_left, int... n>
__device__ void await_products(float (&... sums)[n][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups_left) : "memory");
  const auto forget = [](auto& fragments) {
#pragma unroll
    for (auto& fragment : fragments) {
#pragma unroll
      for (float& sum : fragment) asm volatile("" : "+f"(sum));
    }
  };
  (forget(sums), ...);
}

#define HF_SUMS(i) "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
#define HF_SUMS_8(i)                                                                          \
  HF_SUMS(i), HF_SUMS(i + 1), HF_SUMS(i + 2), HF_SUMS(i + 3), HF_SUMS(i + 4), HF_SUMS(i + 5), \
      HF_SUMS(i + 6), HF_SUMS(i + 7)
#define HF_NAMES_8                                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HF_NAMES_16                                                                                        \
  HF_NAMES_8                                                                                               \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// `add`: the operand that says whether sums are added to; `operands`: those after the sums.
#define HF_PRODUCT(shape, names, add, operands)                                       \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned." shape \
  ".f32.bf16.bf16 {" names "}, " operands ";\n}"

// Starts sums = left * right (+ sums), of 64 x 16 and 16 x 8 n elements that matrix_of() describes. Rows of
// a left operand that is not `left_transposed`, and columns of a right one that is not `right_transposed`,
// have their 16 elements in a row of memory.
template <bool right_transposed, bool left_transposed = false, int n>
__device__ inline void multiply_shared(float (&sums)[n][4], std::uint64_t left, std::uint64_t right,
                                       bool add) {
  static_assert(n == 1 || n == 8 || n == 16);
  constexpr int left_is = left_transposed ? 1 : 0, right_is = right_transposed ? 1 : 0;
  const int adds = add ? 1 : 0;
  if constexpr (n == 1) {
    asm volatile(HF_PRODUCT("m64n8k16", "%0, %1, %2, %3", "%6", "%4, %5, p, 1, 1, %7, %8")
                 : HF_SUMS(0)
                 : "l"(left), "l"(right), "r"(adds), "n"(left_is), "n"(right_is));
  } else if constexpr (n == 8) {
    asm volatile(HF_PRODUCT("m64n64k16", HF_NAMES_8, "%34", "%32, %33, p, 1, 1, %35, %36")
                 : HF_SUMS_8(0)
                 : "l"(left), "l"(right), "r"(adds), "n"(left_is), "n"(right_is));
  } else {
    asm volatile(HF_PRODUCT("m64n128k16", HF_NAMES_16, "%66", "%64, %65, p, 1, 1, %67, %68")
                 : HF_SUMS_8(0), HF_SUMS_8(8)
                 : "l"(left), "l"(right), "r"(adds), "n"(left_is), "n"(right_is));
  }
}

// Starts sums += left * right, with the left operand in registers.
template <bool right_transposed, int n>
__device__ inline void multiply_registers(float (&sums)[n][4], const unsigned (&left)[4],
                                          std::uint64_t right) {
  static_assert(n == 8 || n == 16);
  constexpr int transposed = right_transposed ? 1 : 0;
  if constexpr (n == 8) {
    asm volatile(HF_PRODUCT("m64n64k16", HF_NAMES_8, "%37", "{%32, %33, %34, %35}, %36, p, 1, 1, %38")
                 : HF_SUMS_8(0)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(1),
                   "n"(transposed));
  } else {
    asm volatile(HF_PRODUCT("m64n128k16", HF_NAMES_16, "%69", "{%64, %65, %66, %67}, %68, p, 1, 1, %70")
                 : HF_SUMS_8(0), HF_SUMS_8(8)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(1),
                   "n"(transposed));
  }
}

#undef HF_SUMS
#undef HF_SUMS_8
#undef HF_NAMES_8
#undef HF_NAMES_16
#undef HF_PRODUCT

#endif

// Describes a matrix in shared memory ("Matrix Descriptor Format"). `stride`: bytes from 8 rows of memory to
// the next 8. `leading`: bytes to the next 16 bytes along the sum (`none`), or to the next 64 elements
// across it (rows_of_128 that are transposed; else unused).
__device__ inline std::uint64_t matrix_of(SharedAddress first, unsigned leading, unsigned stride,
                                          Swizzle swizzle) {
  constexpr unsigned unit = 16;
  return (window_address(first) & 0x3ffffU) / unit | std::uint64_t{leading / unit} << 16 |
         std::uint64_t{stride / unit} << 32 | static_cast<std::uint64_t>(swizzle) << 62;
}
// Returns the description of the same so many bytes further.
__device__ inline std::uint64_t matrix_at(std::uint64_t matrix, unsigned bytes) {
  return matrix + bytes / 16;
}

// Describes a tensor of `depth` matrices of bf16, one after another, of `rows` rows of `columns` elements
// without gaps, to copy_box(): a box has box_rows rows (256 at most) of 64 columns, which arrive as
// Swizzle::rows_of_128. `first` and rows are aligned to 16 bytes. On the host.
inline cudaError_t map_rows(CUtensorMap& map, const void* first, std::int64_t columns, std::int64_t rows,
                            std::int64_t depth, unsigned box_rows) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  constexpr unsigned first_version_with_maps = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t asked = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &function, first_version_with_maps, cudaEnableDefault, &found);
  if (asked != cudaSuccess || found != cudaDriverEntryPointSuccess)
    return asked != cudaSuccess ? asked : cudaErrorInsufficientDriver;
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(columns) * 2;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                               static_cast<cuuint64_t>(depth)};
  const cuuint64_t strides[2] = {row_bytes, row_bytes * sizes[1]};
  const cuuint32_t box[3] = {64, box_rows, 1}, steps[3] = {1, 1, 1};
  const CUresult result = reinterpret_cast<Encode>(function)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(first), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace holdfast::kernels::cuda
