// StepNumbers holds what the vote of a step says about its numbers: all that a verdict is made of. They are
// equal on all ranks, because the vote adds exactly.
#pragma once

#include <cstdint>

namespace holdfast::integrity {

struct StepNumbers {
  std::uint64_t step = 0;            // counted from 1
  double loss = 0.0;                 // mean over the targets that count, in nats
  double grad_norm = 0.0;            // global norm, before clipping
  std::int64_t counted_targets = 0;  // targets that count; with 0 of them loss and norm are 0
};

}  // namespace holdfast::integrity
