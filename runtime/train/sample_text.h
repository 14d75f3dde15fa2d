// Says where samples are in the data, for people who look at them.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/config/config.h"
#include "runtime/data/data_set.h"
#include "runtime/data/sample_order.h"

namespace holdfast::train {

// Returns the path of the sample's source, its number, its tokens' numbers within the source, and its first
// tokens; those of a text as characters. Of a sample that cannot be read, without the tokens.
std::string describe_sample(const DataSet& data, const Config& config, const SampleId& id);

// Returns the samples of a microbatch, the first few described. `cursor`: RunState::data_cursor at the step's
// begin.
std::string describe_samples(const DataSet& data, const Config& config, std::uint64_t cursor, int lane,
                             int microbatch);

}  // namespace holdfast::train
