#include "kernels/embedding.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sorted_tokens.h"
#include "kernels/cuda/vector.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int threads = 128;

// grid.x is rows of the result, grid.y cuts them.
template <typename T>
Grid grid_of(std::int64_t rows, std::int64_t width) {
  return {.blocks = {blocks_for(rows, 1), blocks_for(width, threads * pack_size<T>)}, .threads = threads};
}
template <typename T>
__device__ std::int64_t first_column() {
  return (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * pack_size<T>;
}

// The row of the op's table that has the token, or -1.
template <typename Embedding>
__device__ std::int64_t table_row(const Embedding& op, std::int64_t token) {
  const std::int64_t place = token - op.first_token;
  return op.token_count == 0 || (place >= 0 && place < op.token_count) ? place : -1;
}

template <typename T, bool whole>
__global__ void embed(EmbeddingForward op) {
  constexpr int size = pack_size<T>;
  const std::int64_t first = first_column<T>(), row = blockIdx.x, place = table_row(op, op.tokens[row]);
  if (first >= op.width || place < 0) return;
  float x[size];
  load_part<whole>(static_cast<const T*>(op.table) + place * op.width, first, op.width, x);
  if (op.positions != nullptr) {
    const unsigned position = blockIdx.x % static_cast<unsigned>(op.sequence_length);
    float more[size];
    load_part<whole>(static_cast<const T*>(op.positions) + position * op.width, first, op.width, more);
#pragma unroll
    for (int i = 0; i < size; ++i) x[i] += more[i];
  }
  if (op.token_count > 0) {
#pragma unroll
    for (int i = 0; i < size; ++i) x[i] += 0.0F;  // -0 becomes +0, and nothing else changes
  }
  store_part<whole>(static_cast<T*>(op.x) + row * op.width, first, op.width, x);
}

// Holds a thread's columns of neighbours in a list of rows of dx.
template <typename T, bool whole>
struct RowBatch {
  static constexpr int count = whole ? 8 : 4, size = pack_size<T>;
  std::int32_t rows[count] = {};  // -1: the list has ended
  Pack<std::conditional_t<whole, T, float>, size> columns[count];

  __device__ bool is_full() const { return rows[count - 1] >= 0; }
  __device__ void read(const EmbeddingBackward& op, std::int64_t first) {
#pragma unroll
    for (int k = 0; k < count; ++k) {
      if (rows[k] < 0) continue;
      const T* const row = static_cast<const T*>(op.dx) + rows[k] * op.width;
      if constexpr (whole) {
        columns[k] = *reinterpret_cast<const Pack<T, size>*>(row + first);
      } else {
        load_part<false>(row, first, op.width, columns[k].elements);
      }
    }
  }
  __device__ void add_to(float (&sum)[size]) const {
#pragma unroll
    for (int k = 0; k < count; ++k) {
      float values[size] = {};
      if (rows[k] >= 0) unpack(columns[k], values);
#pragma unroll
      for (int i = 0; i < size; ++i) sum[i] = rows[k] < 0 ? sum[i] : sum[i] + values[i];
    }
  }
};

// Adds rows of dx to `target`, one after the other: row_at(i) for i = 0, 1, 2 ... until it is negative. A token
// that is frequent in a text has thousands of rows for one block, which does nothing but wait for memory: so the
// next batch of rows, and the numbers of those after it, are on their way while a batch is added.
template <typename T, bool whole, typename RowAt>
__device__ void add_rows(const EmbeddingBackward& op, float* target, const RowAt& row_at) {
  using Batch = RowBatch<T, whole>;
  const std::int64_t first = first_column<T>();
  if (first >= op.width) return;
  float sum[Batch::size];
  load_part<whole>(target, first, op.width, sum);
  const auto find = [&](std::int32_t(&rows)[Batch::count], std::int64_t from) {
#pragma unroll
    for (int k = 0; k < Batch::count; ++k) rows[k] = static_cast<std::int32_t>(row_at(from + k));
  };
  // Adds a batch and makes it the one after the next, whose rows are read; returns whether there is a next.
  const auto add = [&](Batch& batch, Batch& next, std::int64_t after_next) {
    const bool more = batch.is_full(), continues = more && next.is_full();
    std::int32_t rows[Batch::count];
    if (more) next.read(op, first);
    if (continues) find(rows, after_next);
    batch.add_to(sum);
#pragma unroll
    for (int k = 0; continues && k < Batch::count; ++k) batch.rows[k] = rows[k];
    return more;
  };
  Batch even, odd;  // two by name: a copy of one that is on its way would wait for it
  find(even.rows, 0);
  even.read(op, first);
  if (even.is_full()) find(odd.rows, Batch::count);
  for (std::int64_t from = 2 * Batch::count;; from += 2 * Batch::count) {
    if (!add(even, odd, from) || !add(odd, even, from + Batch::count)) break;
  }
  store_part<whole>(target, first, op.width, sum);
}

// grid.x is places in the sorted order; the block of a token's first place adds all of its rows, if the table
// has the token.
template <typename T, bool whole>
__global__ void add_to_table(EmbeddingBackward op, const TokenRow* sorted) {
  const std::int64_t begin = blockIdx.x;
  const std::uint32_t token = token_of(sorted[begin]);
  const std::int64_t place = table_row(op, token);
  if (place < 0 || (begin > 0 && token_of(sorted[begin - 1]) == token)) return;
  add_rows<T, whole>(op, op.table_gradient + place * op.width, [&](std::int64_t i) -> std::int64_t {
    if (begin + i >= op.rows) return -1;
    const TokenRow next = sorted[begin + i];
    return token_of(next) == token ? static_cast<std::int64_t>(row_of(next)) : -1;
  });
}

// Adds the gradients of positions; grid.x is the position.
template <typename T, bool whole>
__global__ void add_to_positions(EmbeddingBackward op) {
  const std::int64_t position = blockIdx.x;
  add_rows<T, whole>(op, op.positions_gradient + position * op.width, [&](std::int64_t i) -> std::int64_t {
    const std::int64_t row = position + i * op.sequence_length;
    return row < op.rows ? row : -1;
  });
}

}  // namespace

void run_embedding_forward(Context& context, const void* arguments) {
  const EmbeddingForward& op = *static_cast<const EmbeddingForward*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    with_whole<T>(
        op.width, [&](auto whole) { launch(context, embed<T, whole>, grid_of<T>(op.rows, op.width), op); },
        op.table, op.positions, op.x);
  });
}

void prepare_embedding_backward(Context& context, const void* arguments) {
  context.request_workspace(sort_bytes(static_cast<const EmbeddingBackward*>(arguments)->rows));
}

void run_embedding_backward(Context& context, const void* arguments) {
  const EmbeddingBackward& op = *static_cast<const EmbeddingBackward*>(arguments);
  const TokenRow* const sorted = sort_tokens(context, op.tokens, op.rows);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    with_whole<T>(
        op.width,
        [&](auto whole) {
          launch(context, add_to_table<T, whole>, grid_of<T>(op.rows, op.width), op, sorted);
          if (op.positions_gradient == nullptr) return;
          launch(context, add_to_positions<T, whole>,
                 grid_of<T>(std::min(op.rows, op.sequence_length), op.width), op);
        },
        op.dx, op.table_gradient, op.positions_gradient);
  });
}

}  // namespace holdfast::kernels::cuda
