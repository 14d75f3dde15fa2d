#include "kernels/embedding.h"

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"

namespace holdfast::cpu::HF_ISA {

namespace {

// Columns of one index of the backward pass: enough to read whole cache lines, few enough to occupy several
// threads.
constexpr std::int64_t backward_columns = 64;

template <typename T>
void embed_row(const EmbeddingForward& op, std::int64_t row) {
  const T* from = static_cast<const T*>(op.table) + op.tokens[row] * op.width;
  T* x = static_cast<T*>(op.x) + row * op.width;
  if (op.positions == nullptr) {
    __builtin_memcpy(static_cast<void*>(x), from, static_cast<std::size_t>(op.width) * sizeof(T));
    return;
  }
  const T* position = static_cast<const T*>(op.positions) + row % op.sequence_length * op.width;
  for_lanes(op.width, [&](std::int64_t i, auto lanes) {
    store(x + i, load(from + i, lanes) + load(position + i, lanes), lanes);
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
    add_to(op.table_gradient + op.tokens[row] * op.width + first, dx, size);
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

}  // namespace holdfast::cpu::HF_ISA
