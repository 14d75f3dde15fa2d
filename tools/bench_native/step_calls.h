// The calls of a step of a run, for measurements of an op on what the run makes of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/data/data_set.h"
#include "runtime/os/env.h"
#include "tools/bench_native/op_samples.h"

namespace holdfast::bench {

// StepCall is one call, in as many places of a step as have its key (runtime/measure/call_key.h).
struct StepCall {
  OpSample sample;
  std::int64_t calls = 0;  // in a step
};

// Returns the share of the pairs of query and key that causality leaves in the documents of these first keys
// (kernels/attention.h).
double share_of_pairs(std::span<const std::int32_t> first_keys, std::int64_t sequence_length);

// Returns the calls of an op in a step of the run, in its order, on one rank with its memory on the host. `config` is
// resolved for one rank. With `document_mask`, attention has the documents of the first microbatch of `data`, which was
// opened with the run's options.
Result<std::vector<StepCall>> calls_of_step(Env& env, const Config& config, const DataSet& data, OpId op);

}  // namespace holdfast::bench
