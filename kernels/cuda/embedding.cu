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

// Adds rows of dx to `target`, one after the other: row_at(i) for i = 0, 1, 2 ... until it is negative. Reads
// run ahead of the additions.
template <typename T, bool whole, typename RowAt>
__device__ void add_rows(const EmbeddingBackward& op, float* target, const RowAt& row_at) {
  constexpr int size = pack_size<T>, batch = 8;
  const std::int64_t first = first_column<T>();
  if (first >= op.width) return;
  float sum[size], values[batch][size] = {};
  load_part<whole>(target, first, op.width, sum);
  bool more = true;
  for (std::int64_t done = 0; more; done += batch) {
    bool here[batch];
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      const std::int64_t row = row_at(done + k);
      here[k] = row >= 0;
      if (here[k])
        load_part<whole>(static_cast<const T*>(op.dx) + row * op.width, first, op.width, values[k]);
    }
#pragma unroll
    for (int k = 0; k < batch; ++k) {
#pragma unroll
      for (int i = 0; i < size; ++i) sum[i] = here[k] ? sum[i] + values[k][i] : sum[i];
    }
    more = here[batch - 1];
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
