// Products of tiles in fp32 for the general attention kernels: any head size, fp32 or bf16 in memory. A block
// of 256 threads holds a tile of 64 x 64 scores, 4 x 4 of them in each thread, and 64 rows of a result, of
// which it computes `columns` columns: a wider head takes several blocks, each with all the scores. Every sum
// runs along the depth in order.
//
// Thread (y, x) = (thread / 16, thread % 16) has rows y + 16 i, columns x + 16 j of the scores and columns
// 4 x to 4 x + 3 of every 64 of the result: what it reads from shared memory meets no bank conflict, and the
// 16 threads of a row are half a warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention_head.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/vector.h"

namespace holdfast::kernels::cuda {

inline constexpr int tile_rows = 64;  // queries or keys
inline constexpr int tile_threads = 256;
inline constexpr int tile_depth = 32;   // of the head, at a time
inline constexpr int tile_padding = 4;  // keeps 16-byte alignment, spreads rows over banks
inline constexpr int rows_at_once = 16;

// Tiles in dynamic shared memory.
struct TileMemory {
  float left[tile_rows][tile_depth + tile_padding];
  float right[tile_rows][tile_depth + tile_padding];
  float weights[tile_rows][tile_rows + tile_padding];
  float rows[rows_at_once * 128];
};
__device__ inline TileMemory& tile_memory() {
  return *reinterpret_cast<TileMemory*>(dynamic_shared());
}

struct TileThread {
  int x, y;
  __device__ TileThread() : x(static_cast<int>(threadIdx.x) % 16), y(static_cast<int>(threadIdx.x) / 16) {}
};

// Rows of a head from some row on; rows from `rows` on count as zeros.
template <typename T>
struct HeadRows {
  const T* first;
  std::int64_t stride;
  int rows;
  __device__ HeadRows(const T* head, std::int64_t row_stride, int first_row, int end_row)
      : first(head + first_row * row_stride), stride(row_stride), rows(end_row - first_row) {}
};

// Returns the beginning of the first tile of keys that a query, the first of its tile, sees.
__device__ inline int first_tile_of(const VisibleKeys& visible, int query) {
  const int key = visible.sinks > 0 ? visible.first_of(query) : visible.window_of(query);
  return key / tile_rows * tile_rows;
}

// Loads rows x width elements from (first_row, first_column) on, in rows of `stride`; zeros outside of the
// head.
template <int rows, int width, int stride, typename T>
__device__ void load_tile(const HeadRows<T>& head, int first_row, int first_column, int head_size,
                          float* target) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * width; i += tile_threads) {
    const int row = i / width, column = i % width;
    const bool inside = first_row + row < head.rows && first_column + column < head_size;
    const T* source = head.first + (first_row + row) * head.stride + first_column + column;
    target[row * stride + column] = inside ? as_float(*source) : 0.0F;
  }
}

// Computes products[i][j] of row y + 16 i of `left` with row x + 16 j of `right`.
template <typename T>
__device__ void multiply_rows(const HeadRows<T>& left, const HeadRows<T>& right, int head_size,
                              TileMemory& memory, float (&products)[4][4]) {
  constexpr int stride = tile_depth + tile_padding;
  const TileThread thread;
  for (auto& row : products) {
    for (float& product : row) product = 0;
  }
  for (int d = 0; d < head_size; d += tile_depth) {
    __syncthreads();  // the readers of before are done
    load_tile<tile_rows, tile_depth, stride>(left, 0, d, head_size, &memory.left[0][0]);
    load_tile<tile_rows, tile_depth, stride>(right, 0, d, head_size, &memory.right[0][0]);
    __syncthreads();
    const int depth = min(tile_depth, head_size - d);
    for (int k = 0; k < depth; k += 4) {
      float a[4][4], b[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load<4>(&memory.left[thread.y + 16 * i][k], a[i]);
        load<4>(&memory.right[thread.x + 16 * i][k], b[i]);
      }
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) products[i][j] = fmaf(a[i][step], b[j][step], products[i][j]);
        }
      }
    }
  }
}

// Makes a tile of scores the left operand of add_weighted_rows().
__device__ inline void put_weights(const float (&weights)[4][4], TileMemory& memory) {
  const TileThread thread;
  __syncthreads();  // the readers of before are done
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) memory.weights[thread.y + 16 * i][thread.x + 16 * j] = weights[i][j];
  }
}

// Adds weights * rows to sum[i][4 j + c], for row y + 16 i and column first_column + 64 j + 4 x + c.
template <int columns, typename T>
__device__ void add_weighted_rows(const HeadRows<T>& rows, int first_column, int head_size,
                                  TileMemory& memory, float (&sum)[4][columns / 16]) {
  const TileThread thread;
  const int count = min(tile_rows, rows.rows);
  for (int first = 0; first < count; first += rows_at_once) {
    __syncthreads();  // weights are there, the readers of before are done
    load_tile<rows_at_once, columns, columns>(rows, first, first_column, head_size, memory.rows);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < rows_at_once; k += 4) {
      float weights[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load<4>(&memory.weights[thread.y + 16 * i][first + k], weights[i]);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int j = 0; j < columns / 64; ++j) {
          float row[4];
          load<4>(&memory.rows[(k + step) * columns + 64 * j + 4 * thread.x], row);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int c = 0; c < 4; ++c) sum[i][4 * j + c] = fmaf(weights[i][step], row[c], sum[i][4 * j + c]);
          }
        }
      }
    }
  }
}

// Stores the result of add_weighted_rows(), row i times scale[i], to rows first_row to end_row of `target`.
template <int columns, typename T>
__device__ void store_rows(const float (&sum)[4][columns / 16], const float (&scale)[4], T* target,
                           std::int64_t stride, int first_row, int end_row, int first_column, int head_size) {
  const TileThread thread;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + thread.y + 16 * i;
    if (row >= end_row) continue;
#pragma unroll
    for (int j = 0; j < columns / 16; ++j) {
      const int column = first_column + 64 * (j / 4) + 4 * thread.x + j % 4;
      if (column < head_size) target[row * stride + column] = from_float<T>(sum[i][j] * scale[i]);
    }
  }
}

// Reduces a value over the 16 threads of a row; all of them get the result.
template <typename Combine>
__device__ float reduce_row(float value, Combine combine) {
#pragma unroll
  for (int flip = 8; flip > 0; flip /= 2) value = combine(value, __shfl_xor_sync(all_lanes, value, flip));
  return value;
}

// Returns the grid, whose blockIdx.y counts the blocks that share the columns of a head.
inline Grid tile_grid(std::int64_t heads, std::int64_t length, std::int64_t head_size, int columns) {
  return {.blocks = dim3(blocks_of_heads(heads, length, tile_rows), blocks_for(head_size, columns)),
          .threads = tile_threads,
          .shared_bytes = sizeof(TileMemory)};
}

// Calls body(T{}, std::integral_constant<int, columns>{}).
template <typename Body>
void for_tile_kernel(DType dtype, std::int64_t head_size, const Body& body) {
  for_dtype(dtype, [&](auto element) {
    if (head_size <= 64) {
      body(element, std::integral_constant<int, 64>{});
    } else {
      body(element, std::integral_constant<int, 128>{});
    }
  });
}

}  // namespace holdfast::kernels::cuda
