// Cuts the work of element-wise and row-wise kernels for Context::parallel_for, by sizes that follow from the
// shape.
#pragma once

#include <cstdint>

#include "kernels/cpu/context.h"
#include "runtime/core/block.h"

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

// Calls body(part, first element of the part, elements) for what blocks [begin, end) are of the parts of a table, each of
// which has its `count` of elements and the number `first_block` of its first block. The first such part is the last
// one that starts at or before `begin`.
template <typename Part, typename Body>
[[gnu::always_inline]] inline void for_parts(const Part* parts, std::int64_t part_count, std::int64_t begin,
                                             std::int64_t end, const Body& body) {
  constexpr std::int64_t block = static_cast<std::int64_t>(block_elements);
  std::int64_t at = 0;
  for (std::int64_t high = part_count; high - at > 1;) {
    const std::int64_t middle = at + (high - at) / 2;
    (parts[middle].first_block <= begin ? at : high) = middle;
  }
  for (; begin < end; ++at) {
    const Part& part = parts[at];
    const std::int64_t first = (begin - part.first_block) * block;
    const std::int64_t last = smaller((end - part.first_block) * block, part.count);
    body(part, first, last - first);
    begin = part.first_block + ceil_divide(last, block);
  }
}

}  // namespace holdfast::kernels::cpu::HF_ISA
