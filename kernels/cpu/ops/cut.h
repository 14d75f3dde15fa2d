// Cuts the work of element-wise and row-wise kernels for Context::parallel_for, by sizes that follow from the
// shape.
#pragma once

#include <cstdint>

#include "kernels/cpu/context.h"

namespace holdfast::kernels::cpu::HF_ISA {

inline constexpr std::int64_t chunk_elements =
    16384;  // of one index: 64 KiB of fp32, and a multiple of every vector

// Replacements for std::min and std::max, whose code the instruction sets would share (see ops.h).
[[gnu::always_inline]] inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
[[gnu::always_inline]] inline std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a < b ? b : a;
}
[[gnu::always_inline]] inline std::int64_t ceil_divide(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Returns the rows of one index when a row has `width` elements.
[[gnu::always_inline]] inline std::int64_t rows_per_chunk(std::int64_t width) {
  return larger(1, chunk_elements / larger(1, width));
}

// Calls body(first, size) for consecutive pieces of [0, count) of `chunk` elements (the last may be short),
// in parallel.
template <typename Body>
[[gnu::always_inline]] inline void for_chunks(const Context& context, std::int64_t count, std::int64_t chunk,
                                              const Body& body) {
  context.parallel_for(ceil_divide(count, chunk), [&](std::int64_t index, int) {
    const std::int64_t first = index * chunk;
    body(first, smaller(chunk, count - first));
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
