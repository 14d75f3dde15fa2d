#include "kernels/elementwise.h"

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/ops/square_sum.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

constexpr std::int64_t chunk_bytes = 65536;
constexpr std::int64_t accumulate_chunk_elements = 131072;
// Minimum size of a streamed tensor: a larger one would only push other data out of the caches.
constexpr std::int64_t stream_bytes = 4 << 20;
constexpr std::int64_t prefetch_elements = 1024;

HF_INLINE void add_into(float* target, const float* source, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, auto lanes) {
    prefetch(target + i + prefetch_elements);
    prefetch(source + i + prefetch_elements);
    store(target + i, load(target + i, lanes) + load(source + i, lanes), lanes);
  });
}

// A block of 32 elements is read again right after it was written: it comes from the store buffer.
void add_into(float* target, const float* source, std::int64_t count, const BlockSums& sums) {
  square_sums(
      count, sums, [&](std::int64_t i, std::int64_t size) __attribute__((always_inline)) {
        add_into(target + i, source + i, size);
        return target + i;
      });
}

}  // namespace

void run_add(const Context& context, const void* arguments) {
  const Add& op = *static_cast<const Add*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    for_chunks(context, op.count, chunk_elements, [&](std::int64_t first, std::int64_t size) {
      const T* a = static_cast<const T*>(op.a) + first;
      const T* b = static_cast<const T*>(op.b) + first;
      T* y = static_cast<T*>(op.y) + first;
      for_lanes(size, [&](std::int64_t i, auto lanes) {
        store(y + i, load(a + i, lanes) + load(b + i, lanes), lanes);
      });
    });
  });
}

void run_accumulate(const Context& context, const void* arguments) {
  const Accumulate& op = *static_cast<const Accumulate*>(arguments);
  if (op.square_sums == nullptr) {
    for_chunks(context, op.count, accumulate_chunk_elements, [&](std::int64_t first, std::int64_t size) {
      add_into(op.target + first, op.source + first, size);
    });
    return;
  }
  for_summed_pieces(context, op, {.squares = op.square_sums, .digests = op.digests},
                    [&](std::int64_t first, std::int64_t size, const BlockSums& sums) {
                      add_into(op.target + first, op.source + first, size, sums);
                    });
}

void run_cast(const Context& context, const void* arguments) {
  const Cast& op = *static_cast<const Cast*>(arguments);
  for_chunks(context, op.count, chunk_elements, [&](std::int64_t first, std::int64_t size) {
    for_lanes(size, [&](std::int64_t i, auto lanes) {
      store(op.target + first + i, load(op.source + first + i, lanes), lanes);
    });
  });
}

void run_fill_zero(const Context& context, const void* arguments) {
  const FillZero& op = *static_cast<const FillZero*>(arguments);
  const bool streams = op.bytes >= stream_bytes && stream_aligned(op.target);
  for_chunks(context, op.bytes, chunk_bytes, [&](std::int64_t first, std::int64_t size) {
    std::byte* const target = static_cast<std::byte*>(op.target) + first;
    if (streams && size == chunk_bytes) {
      for_lanes(chunk_bytes / 4, [target](std::int64_t i, auto lanes) {
        stream(reinterpret_cast<float*>(target) + i, zero(), lanes);
      });
      stream_fence();
    } else {
      __builtin_memset(target, 0, static_cast<std::size_t>(size));
    }
  });
}

void run_copy(const Context& context, const void* arguments) {
  const Copy& op = *static_cast<const Copy*>(arguments);
  const bool streams = op.bytes >= stream_bytes && stream_aligned(op.target);
  for_chunks(context, op.bytes, chunk_bytes, [&](std::int64_t first, std::int64_t size) {
    std::byte* const target = static_cast<std::byte*>(op.target) + first;
    const std::byte* const source = static_cast<const std::byte*>(op.source) + first;
    if (streams && size == chunk_bytes) {
      for_lanes(chunk_bytes / 4, [target, source](std::int64_t i, auto lanes) {
        const float* const from = reinterpret_cast<const float*>(source) + i;
        prefetch(from + prefetch_elements);
        stream(reinterpret_cast<float*>(target) + i, load(from, lanes), lanes);
      });
      stream_fence();
    } else {
      __builtin_memcpy(target, source, static_cast<std::size_t>(size));
    }
  });
}

void run_copy_rows(const Context& context, const void* arguments) {
  const CopyRows& op = *static_cast<const CopyRows*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    const std::int64_t rows_at_once = rows_per_chunk(op.columns);
    for_chunks(context, op.rows, rows_at_once, [&](std::int64_t first, std::int64_t size) {
      for (std::int64_t row = first; row < first + size; ++row) {
        __builtin_memcpy(static_cast<T*>(op.target) + row * op.target_stride,
                         static_cast<const T*>(op.source) + row * op.source_stride,
                         static_cast<std::size_t>(op.columns) * sizeof(T));
      }
    });
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
