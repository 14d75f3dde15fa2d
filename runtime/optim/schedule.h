// Learning-rate schedules: pure functions of the step. Warm-up is linear from peak / warmup to peak; then
//   constant  peak
//   linear    straight down to final_fraction * peak at the last step
//   cosine    half a cosine down to final_fraction * peak (Loshchilov & Hutter 2017)
//   wsd       peak, then straight down over the last decay_fraction of the steps (Hu et al. 2024)
//   inverse_sqrt  peak / sqrt(1 + t / s) after t steps, with s the steps of the warm-up, or 10,000 without one: the
//             schedule of Vaswani et al. 2017, with the numbers of transformers. Where the run ends is no matter to it
#pragma once

#include <cstdint>

#include "runtime/config/config.h"

namespace holdfast::optim {

// Returns the rate for the update that makes step `step` (counted from 1) of `steps`. Computed in double with
// own arithmetic order.
double learning_rate_at(const OptimizerConfig& optimizer, std::int64_t step, std::int64_t steps);

// Returns the rate after so many roll-backs, each of which multiplies it by `factor` (verdict.rate_after_rollback).
double rate_after_rollbacks(double rate, double factor, std::uint64_t rollbacks);

}  // namespace holdfast::optim
