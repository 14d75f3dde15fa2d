#include "kernels/elementwise.h"

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"

namespace holdfast::cpu::HF_ISA {

namespace {

constexpr std::int64_t chunk_bytes = 65536;

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
  for_chunks(context, op.count, chunk_elements, [&](std::int64_t first, std::int64_t size) {
    float* target = op.target + first;
    const float* source = op.source + first;
    for_lanes(size, [&](std::int64_t i, auto lanes) {
      store(target + i, load(target + i, lanes) + load(source + i, lanes), lanes);
    });
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
  for_chunks(context, op.bytes, chunk_bytes, [&](std::int64_t first, std::int64_t size) {
    __builtin_memset(static_cast<std::byte*>(op.target) + first, 0, static_cast<std::size_t>(size));
  });
}

void run_copy(const Context& context, const void* arguments) {
  const Copy& op = *static_cast<const Copy*>(arguments);
  for_chunks(context, op.bytes, chunk_bytes, [&](std::int64_t first, std::int64_t size) {
    __builtin_memcpy(static_cast<std::byte*>(op.target) + first,
                     static_cast<const std::byte*>(op.source) + first, static_cast<std::size_t>(size));
  });
}

}  // namespace holdfast::cpu::HF_ISA
