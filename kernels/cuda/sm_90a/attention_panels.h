// Holds what the attention kernels of this folder share: blocks of three warpgroups, of which the first
// brings tiles of bf16 by tensor copies into rings in shared memory, and the others multiply them, 64 rows
// of a product each. A tile lies there in panels of 64 columns of all its rows (Swizzle::rows_of_128, as
// the boxes of map_rows() arrive).
#pragma once

#include "kernels/cuda/attention_mma.h"
#include "kernels/cuda/sm_90a/warpgroup.h"

namespace holdfast::kernels::cuda {

inline constexpr int groups = 2;  // that multiply
inline constexpr int group_rows = 64;
inline constexpr int group_warps = warpgroup_threads / 32;
inline constexpr int block_threads = (1 + groups) * warpgroup_threads;
inline constexpr int panel_columns = 64;
inline constexpr unsigned row_bytes = panel_columns * 2;  // of a panel
inline constexpr unsigned swizzled_rows = 8 * row_bytes;  // bytes that a swizzle stays inside of

// Goes round a ring of `slots` tiles, as all threads do, in one order.
template <int slots>
struct RingPlace {
  int slot = 0;
  unsigned turn = 0;  // parity
  __device__ void advance() {
    if (++slot == slots) {
      slot = 0;
      turn ^= 1U;
    }
  }
};

// Describes rows of a tile, from a multiple of 8 on, whose panels have so many bytes.
__device__ inline std::uint64_t rows_of(SharedAddress first, unsigned panel_bytes) {
  return matrix_of(first, panel_bytes, swizzled_rows, Swizzle::rows_of_128);
}

// Starts products = left * right^T over the head, of rows of a tile each, and ends their group.
template <int head_size, unsigned left_panel_bytes, unsigned right_panel_bytes, int n>
__device__ void multiply_heads(std::uint64_t left, std::uint64_t right, float (&products)[n][4]) {
  fence_products();
#pragma unroll
  for (int d = 0; d < head_size; d += 16) {
    const unsigned panel = d / panel_columns, column_bytes = d % panel_columns * 2;
    multiply_shared<false>(products, matrix_at(left, panel * left_panel_bytes + column_bytes),
                           matrix_at(right, panel * right_panel_bytes + column_bytes), d > 0);
  }
  commit_products();
}

// Starts sums += weights * rows, over 16 k rows of a tile, and ends their group.
template <int k_tiles, int n>
__device__ void add_rows(const unsigned (&weights)[k_tiles][4], std::uint64_t rows, float (&sums)[n][4]) {
  fence_products();
#pragma unroll
  for (int k = 0; k < k_tiles; ++k)
    multiply_registers<true>(sums, weights[k], matrix_at(rows, 2 * k * swizzled_rows));
  commit_products();
}

// Stores the rows of a warp like store_rows(), a panel after the other.
template <unsigned panel_bytes, int n_tiles>
__device__ void store_panels(const MmaSums<1, n_tiles>& sums, const float (&scale)[1][2], std::byte* tile,
                             int tile_row, BFloat16* target, int stride, int first_row, int end_row) {
  constexpr int panel_tiles = panel_columns / 8;
#pragma unroll
  for (int panel = 0; panel < n_tiles / panel_tiles; ++panel) {
    const auto& columns = reinterpret_cast<const MmaSums<1, panel_tiles>&>(sums[0][panel * panel_tiles]);
    store_rows<panel_columns>(columns, scale, tile + panel * panel_bytes, tile_row,
                              target + panel * panel_columns, stride, first_row, end_row);
  }
}

}  // namespace holdfast::kernels::cuda
