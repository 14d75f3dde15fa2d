#include "kernels/embedding.h"

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

// Columns of one index of the backward pass: enough to read whole cache lines, few enough to occupy several
// threads.
constexpr std::int64_t backward_columns = 64;

// The row of the op's table that has the row's token, or -1.
template <typename Embedding>
HF_INLINE std::int64_t table_row(const Embedding& op, std::int64_t row) {
  const std::int64_t place = op.tokens[row] - op.first_token;
  return op.token_count == 0 || (place >= 0 && place < op.token_count) ? place : -1;
}

template <typename T>
void embed_row(const EmbeddingForward& op, std::int64_t row) {
  const std::int64_t place = table_row(op, row);
  if (place < 0) return;
  const T* from = static_cast<const T*>(op.table) + place * op.width;
  const T* position = op.positions == nullptr
                          ? nullptr
                          : static_cast<const T*>(op.positions) + row % op.sequence_length * op.width;
  T* x = static_cast<T*>(op.x) + row * op.width;
  const bool is_slice = op.token_count > 0;
  if (position == nullptr && !is_slice) {
    __builtin_memcpy(static_cast<void*>(x), from, static_cast<std::size_t>(op.width) * sizeof(T));
    return;
  }
  for_lanes(op.width, [&](std::int64_t i, auto lanes) {
    f32x16 value = load(from + i, lanes);
    if (position != nullptr) value = value + load(position + i, lanes);
    if (is_slice) value = value + zero();  // -0 becomes +0, and nothing else changes
    store(x + i, value, lanes);
  });
}

template <typename T>
HF_INLINE void add_to(float* target, const T* source, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, auto lanes) {
    store(target + i, load(target + i, lanes) + load(source + i, lanes), lanes);
  });
}

// One thread walks all rows of its columns, so rows that share a token are added in row order.
template <typename T>
void add_columns(const EmbeddingBackward& op, std::int64_t first, std::int64_t size) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    const T* dx = static_cast<const T*>(op.dx) + row * op.width + first;
    const std::int64_t place = table_row(op, row);
    if (place >= 0) add_to(op.table_gradient + place * op.width + first, dx, size);
    if (op.positions_gradient != nullptr) {
      add_to(op.positions_gradient + row % op.sequence_length * op.width + first, dx, size);
    }
  }
}

}  // namespace

void run_embedding_forward(const Context& context, const void* arguments) {
  const EmbeddingForward& op = *static_cast<const EmbeddingForward*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    for_chunks(context, op.rows, rows_per_chunk(op.width), [&](std::int64_t first, std::int64_t size) {
      for (std::int64_t row = first; row < first + size; ++row) embed_row<decltype(element)>(op, row);
    });
  });
}

void run_embedding_backward(const Context& context, const void* arguments) {
  const EmbeddingBackward& op = *static_cast<const EmbeddingBackward*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    for_chunks(context, op.width, backward_columns, [&](std::int64_t first, std::int64_t size) {
      add_columns<decltype(element)>(op, first, size);
    });
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
