// The minimum work of an op, independent of its implementation: the yardstick that benchmarks measure an
// implementation against. A pure function of shapes and of which arguments share memory.
#pragma once

#include <cstdint>

#include "kernels/op.h"

namespace holdfast::kernels {

struct OpCost {
  // Number of multiplications and additions in the op's matrix products; 0 for ops that memory limits.
  double flops = 0.0;
  // Bytes that are moved if each operand is moved once: by an implementation that keeps everything else in
  // registers and caches.
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t bytes_updated = 0;  // part of both: memory that is read and then written in place

  std::uint64_t bytes_moved() const { return bytes_read + bytes_written; }
  std::uint64_t working_set_bytes() const { return bytes_read + bytes_written - bytes_updated; }
};

// Returns the cost of an op. `arguments` is the struct of `id`; its memory is not read, except the table of
// AdamW and OptimizerDigest. Attention counts the pairs that causality and its window leave, regardless of document masks, and in its backward
// pass the five products of recomputing probabilities; embeddings count a row of the table as often as a
// token names it, and those of a slice count every token as one of the slice.
OpCost cost_of(OpId id, const void* arguments);

template <typename Op>
OpCost cost_of(const Op& op) {
  return cost_of(Op::id, &op);
}

}  // namespace holdfast::kernels
