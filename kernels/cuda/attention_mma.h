// Tiles of bf16 in shared memory and their products in tensor cores, for attention of head sizes 64 and 128.
// A block has four warps; each owns 16 or 32 rows of a tile and all columns of its results, so softmax and
// its gradient never leave the warp, and a product's result is the next one's left operand where it is, in
// registers (FlashAttention-2, Dao 2023).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention_head.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/vector.h"

namespace holdfast::kernels::cuda {

inline constexpr int mma_threads = 128;
inline constexpr int mma_warps = mma_threads / 32;

struct MmaThread {
  int lane, warp;
  int row, column;  // of the lane's first element of a sum; it also has row + 8 and column + 1
  __device__ explicit MmaThread(int thread = static_cast<int>(threadIdx.x))
      : lane(thread % 32), warp(thread / 32), row(lane / 4), column(2 * (lane % 4)) {}
};

// Layout of rows of `width` elements, a head's or 32, in shared memory, in pieces of 16 bytes. Piece p of row r
// is at position p ^ (r % 8), of 32 elements p ^ (r / 2 % 4): the eight rows that one matrix of ldmatrix takes
// are then in different banks.
template <int width>
struct MmaTile {
  static constexpr int pieces = width / 8;
  static constexpr int row_bytes = width * 2;
  static constexpr int bytes_of(int rows) { return rows * row_bytes; }
  __device__ static int swizzle(int row) { return pieces < 8 ? row / 2 % 4 : row % 8; }
  __device__ static int offset(int row, int piece) { return row * row_bytes + (piece ^ swizzle(row)) * 16; }
};

// Starts the copies of `rows` rows from first_row on; rows from end_row on become zeros.
template <int rows, int head_size>
__device__ void copy_tile(std::byte* tile, const BFloat16* head, int stride, int first_row, int end_row) {
  using Tile = MmaTile<head_size>;
  constexpr int rows_together = mma_threads / Tile::pieces;
  static_assert(rows_together % 8 == 0 && rows % rows_together == 0);
  const int thread = forgotten(static_cast<int>(threadIdx.x));
  const int piece = thread % Tile::pieces, first = thread / Tile::pieces;
  const SharedAddress target = shared_address(tile) + Tile::offset(first, piece);
  const BFloat16* source = head + piece * 8;
#pragma unroll
  for (int i = 0; i < rows; i += rows_together) {
    const int row = first_row + first + i;
    const std::int64_t offset = static_cast<std::int64_t>(min(row, end_row - 1)) * stride;
    copy_async<16>(target + i * Tile::row_bytes, source + offset, row < end_row);
  }
}

// Starts the copies of one value per row, like copy_tile(); `values` have 4 bytes each.
template <int rows, typename T>
__device__ void copy_values(T* target, const T* source, int first_row, int end_row) {
  static_assert(rows <= mma_threads && sizeof(T) == 4);
  const int row = forgotten(static_cast<int>(threadIdx.x));
  if (row >= rows) return;
  copy_async<4>(shared_address(reinterpret_cast<std::byte*>(target + row)),
                source + min(first_row + row, end_row - 1), first_row + row < end_row);
}

// Selects the role of a tile that a lane reads from `first_row` (a multiple of 8) on. As left operand, or
// transposed as right operand, four matrices are rows 0-7 and 8-15, then both of the next 8 columns; as right
// operand of A B^T, or transposed as left operand, they are the two halves of 16 columns of rows 0-7, then of
// rows 8-15.
enum class Operand { left, right };
template <int head_size, Operand operand>
struct MmaReader {
  SharedAddress row;
  int swizzle;

  __device__ MmaReader(std::byte* tile, int first_row = 0, int lane = MmaThread().lane) {
    const int lane_row = operand == Operand::left ? lane % 16 : lane / 16 * 8 + lane % 8;
    const int lane_piece = operand == Operand::left ? lane / 16 : lane / 8 % 2;
    row = shared_address(tile) + (first_row + lane_row) * MmaTile<head_size>::row_bytes;
    swizzle = (lane_piece ^ MmaTile<head_size>::swizzle(lane_row)) * 16;
  }
  // Loads 16 x 16 elements; rows and columns are multiples of 16. Positions change within 128 bytes only:
  // that takes less to compute and to keep than one address for each column.
  template <bool transposed = false>
  __device__ void load(unsigned (&fragment)[4], int first_row, int first_column) const {
    const int bytes = first_column * 2;
    load_matrices<transposed>(fragment, row + ((bytes % 128) ^ swizzle) +
                                            (bytes / 128 * 128 + first_row * MmaTile<head_size>::row_bytes));
  }
};
template <int head_size>
using LeftReader = MmaReader<head_size, Operand::left>;
template <int head_size>
using RightReader = MmaReader<head_size, Operand::right>;

// Sums of m x n tiles of 16 x 8, and the same rounded to bf16 as left operands of 16 x 16.
template <int m_tiles, int n_tiles>
using MmaSums = float[m_tiles][n_tiles][4];
template <int m_tiles, int k_tiles>
using MmaLeft = unsigned[m_tiles][k_tiles][4];

template <int m_tiles, int n_tiles>
__device__ void set_zero(MmaSums<m_tiles, n_tiles>& sums) {
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
    }
  }
}

// Computes products = left * right^T, of rows of `left` and rows of `right`, over the head.
template <int head_size, int m_tiles, int n_tiles>
__device__ void multiply_rows(const LeftReader<head_size>& left, const RightReader<head_size>& right,
                              MmaSums<m_tiles, n_tiles>& products) {
  set_zero<m_tiles, n_tiles>(products);
#pragma unroll(head_size / 32)  // half of it: unrolled whole, loads are moved up until registers spill
  for (int d = 0; d < head_size; d += 16) {
    unsigned a[m_tiles][4];
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) left.load(a[m], 16 * m, d);
#pragma unroll
    for (int n = 0; n < n_tiles; n += 2) {
      unsigned b[4];
      right.load(b, 8 * n, d);
#pragma unroll
      for (int m = 0; m < m_tiles; ++m) {
        multiply_add(products[m][n], a[m], b[0], b[1]);
        multiply_add(products[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Adds weights * rows to sums: `rows` starts with the row of the first column of `weights`.
template <int head_size, int m_tiles, int k_tiles>
__device__ void add_weighted_rows(const MmaLeft<m_tiles, k_tiles>& weights, const LeftReader<head_size>& rows,
                                  MmaSums<m_tiles, head_size / 8>& sums) {
#pragma unroll
  for (int k = 0; k < k_tiles; ++k) {
#pragma unroll
    for (int d = 0; d < head_size; d += 16) {
      unsigned b[4];
      rows.template load<true>(b, 16 * k, d);
#pragma unroll
      for (int m = 0; m < m_tiles; ++m) {
        multiply_add(sums[m][d / 8], weights[m][k], b[0], b[1]);
        multiply_add(sums[m][d / 8 + 1], weights[m][k], b[2], b[3]);
      }
    }
  }
}

template <int m_tiles, int n_tiles>
__device__ void round_to_left(const MmaSums<m_tiles, n_tiles>& sums, MmaLeft<m_tiles, n_tiles / 2>& left) {
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
      left[m][n / 2][n % 2 * 2] = pack_bf16(sums[m][n][0], sums[m][n][1]);
      left[m][n / 2][n % 2 * 2 + 1] = pack_bf16(sums[m][n][2], sums[m][n][3]);
    }
  }
}

// Sets the scores that a query does not see to minus infinity, for queries warp_first + row and keys
// first_key + column.
template <int m_tiles, int n_tiles>
__device__ void hide_keys(MmaSums<m_tiles, n_tiles>& scores, const VisibleKeys& visible, int warp_first,
                          int first_key) {
  const MmaThread thread;
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = warp_first + 16 * m + 8 * half + thread.row;
      const int begin = visible.first_of(query);
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = first_key + 8 * n + thread.column + i;
          if (key > query || key < begin) scores[m][n][2 * half + i] = -INFINITY;
        }
      }
    }
  }
}

// Softmax state of the queries of a warp, two of each m tile in a lane. Scores and references are products of
// query and key; `scale` makes powers of 2 of them. A reference stays as long as no score passes it by more than
// a factor of 2^8 (as FlashAttention 4 does): sums seldom have to be scaled.
template <int m_tiles>
struct MmaSoftmax {
  static constexpr float slack = 8;  // binades by which a score may pass the reference of its row
  float scale;
  float reference[m_tiles][2];
  float sum[m_tiles][2];  // of this lane's columns

  __device__ explicit MmaSoftmax(int head_size) : scale(log2_e / sqrtf(static_cast<float>(head_size))) {
    for (int m = 0; m < m_tiles; ++m) {
      for (int half = 0; half < 2; ++half) {
        reference[m][half] = lowest_score;
        sum[m][half] = 0;
      }
    }
  }

  // Raises a reference to the largest score where scores exceed it too far. Returns whether any lane of the
  // warp did: then earlier sums of weighted values have to be scaled by `shrink`.
  template <int n_tiles>
  __device__ bool raise_references(const MmaSums<m_tiles, n_tiles>& scores, float (&shrink)[m_tiles][2]) {
    bool raised = false;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = reference[m][half];
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
          largest = fmaxf(largest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, 2));
        const float passed = (largest - reference[m][half]) * scale;
        shrink[m][half] = passed > slack ? exp2_approximate(-passed) : 1.0F;
        if (passed > slack) reference[m][half] = largest;
        raised = raised || passed > slack;
      }
    }
    if (__ballot_sync(all_lanes, raised) == 0) return false;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[m][half] *= shrink[m][half];
    }
    return true;
  }

  // Turns scores into 2^(scale * (score - reference)).
  template <int n_tiles>
  __device__ void soften(MmaSums<m_tiles, n_tiles>& scores) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[m][n][i] = exp2_approximate(fmaf(scores[m][n][i], scale, -reference[m][i / 2] * scale));
          sum[m][i / 2] += scores[m][n][i];
        }
      }
    }
  }

  // Computes 1 / sum of each query; its log-sum-exp goes to lse.
  __device__ void finish(float* lse, int warp_first, int length, float (&inverse)[m_tiles][2]) const {
    const MmaThread thread;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float total = sum[m][half];
        total += __shfl_xor_sync(all_lanes, total, 1);
        total += __shfl_xor_sync(all_lanes, total, 2);
        inverse[m][half] = 1.0F / total;
        const int query = warp_first + 16 * m + 8 * half + thread.row;
        if (thread.column == 0 && query < length)
          lse[query] = fmaf(reference[m][half] * scale, ln_2, logf(total));
      }
    }
  }
};

// Multiplies rows by factors.
template <int m_tiles, int n_tiles>
__device__ void scale_rows(const float (&factors)[m_tiles][2], MmaSums<m_tiles, n_tiles>& sums) {
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] *= factors[m][i / 2];
    }
  }
}

// Stores the warp's rows, times scale[m][row or row + 8], to rows first_row to end_row of `target`: of the whole
// head, or the 8 * n_tiles columns from first_column on. They go through a tile that is no longer needed: whole
// pieces of 16 bytes leave the warp.
template <int head_size, int m_tiles, int n_tiles>
__device__ void store_rows(const MmaSums<m_tiles, n_tiles>& sums, const float (&scale)[m_tiles][2],
                           std::byte* tile, int tile_row, BFloat16* target, int stride, int first_row,
                           int end_row, int first_column = 0) {
  using Tile = MmaTile<head_size>;
  const MmaThread thread(forgotten(static_cast<int>(threadIdx.x)));
  __syncwarp();  // lanes may still read the tile
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
        const float* pair = &sums[m][n][2 * half];
        std::byte* place = tile +
                           Tile::offset(tile_row + 16 * m + 8 * half + thread.row, first_column / 8 + n) +
                           2 * thread.column;
        *reinterpret_cast<unsigned*>(place) = pack_bf16(pair[0] * scale[m][half], pair[1] * scale[m][half]);
      }
    }
  }
  __syncwarp();
  constexpr int rows_together = 32 / n_tiles;
  const int piece = first_column / 8 + thread.lane % n_tiles;
#pragma unroll
  for (int i = 0; i < 16 * m_tiles; i += rows_together) {
    const int row = i + thread.lane / n_tiles;
    if (first_row + row >= end_row) continue;
    const std::int64_t offset = static_cast<std::int64_t>(first_row + row) * stride + piece * 8;
    *reinterpret_cast<uint4*>(target + offset) =
        *reinterpret_cast<const uint4*>(tile + Tile::offset(tile_row + row, piece));
  }
}

inline Grid mma_grid(std::int64_t heads, std::int64_t length, int tile_rows, int shared_bytes) {
  return {.blocks = blocks_of_heads(heads, length, tile_rows),
          .threads = mma_threads,
          .shared_bytes = static_cast<std::size_t>(shared_bytes)};
}

template <typename Op>
bool supports_attention_mma(const void* arguments) {
  const Op& op = *static_cast<const Op*>(arguments);
  return op.dtype == DType::bf16 && (op.head_size == 64 || op.head_size == 128) && op.window == 0;
}

// Calls body(std::integral_constant<int, head_size>{}).
template <typename Body>
void for_mma_head_size(std::int64_t head_size, const Body& body) {
  if (head_size == 64) {
    body(std::integral_constant<int, 64>{});
  } else {
    body(std::integral_constant<int, 128>{});
  }
}

}  // namespace holdfast::kernels::cuda
