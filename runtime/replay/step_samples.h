// Looks up which samples the lanes of a step use, without a loader.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/data/loader.h"

namespace holdfast::replay {

// LaneSamples describes the samples of one lane in one step.
struct LaneSamples {
  SampleId first = {};
  std::vector<std::int32_t> tokens = {};  // the first tokens of that sample
  std::uint64_t counted_targets = 0;      // of all samples of the lane
};

// Returns the samples of a step, by lane. `cursor`: global position of the first sample of the step. Reads
// all samples of the step. ExitCode::data as DataSet::read().
Result<std::vector<LaneSamples>> samples_of_step(const DataSet& data, std::uint64_t seed,
                                                 const BatchShape& shape, std::uint64_t cursor,
                                                 std::int64_t vocabulary);

}  // namespace holdfast::replay
