// Makes what the tests of verdicts share: numbers of a step, and histories that are full of ordinary ones.
#pragma once

#include <cstdint>

#include "runtime/integrity/numbers_history.h"

namespace holdfast::test {

inline StepNumbers numbers_at(std::uint64_t step, double loss, double grad_norm) {
  return {.step = step, .loss = loss, .grad_norm = grad_norm, .counted_targets = 512};
}

// The steps 1 .. `steps`: losses of 2.90, 2.95, ... 3.10 and norms of 0.90 ... 1.10 in turn, so that the
// medians are 3 and 1.
inline NumbersHistory steady_history(std::uint64_t steps, std::int64_t window_steps = 128) {
  NumbersHistory history(window_steps);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const double place = static_cast<double>(step % 5) - 2.0;
    history.add(numbers_at(step, 3.0 + 0.05 * place, 1.0 + 0.05 * place));
  }
  return history;
}

}  // namespace holdfast::test
