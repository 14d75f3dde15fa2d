// What an op must do at least, whoever implements it: the yardstick that benchmarks hold an implementation
// against. A pure function of shapes and of which arguments share memory.
#pragma once

#include <cstdint>

#include "kernels/op.h"

namespace holdfast::inline kernels {

struct OpCost {
  // Multiplications and additions of the op's matrix products; 0 for ops that memory limits.
  double flops = 0.0;
  // Each operand once: what an implementation moves that keeps everything else in registers and caches.
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t bytes_updated = 0;  // part of both: memory that is read and then written in place

  std::uint64_t bytes_moved() const { return bytes_read + bytes_written; }
  std::uint64_t working_set_bytes() const { return bytes_read + bytes_written - bytes_updated; }
};

// `arguments` is the struct of `id`; its memory is not looked at, but for the table of AdamW. Attention
// counts the pairs that causality leaves, whatever documents mask besides, and in its backward pass the five
// products of recomputing probabilities; embeddings count a row of the table as often as a token names it,
// and those of a slice every token as one of theirs.
OpCost cost_of(OpId id, const void* arguments);

template <typename Op>
OpCost cost_of(const Op& op) {
  return cost_of(Op::id, &op);
}

}  // namespace holdfast::inline kernels
