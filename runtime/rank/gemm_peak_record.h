// Keeps the rate that GemmPeak measured in this run, and on which machines: a start on the same machines,
// with the same ranks on each, need not measure it again while all ranks wait. A machine counts as another
// one after it has booted. Pure, except for peak_place().
#pragma once

#include <optional>
#include <span>
#include <string>

#include "kernels/device.h"
#include "runtime/core/tensor.h"
#include "runtime/os/env.h"

namespace holdfast::inline rank {

// Returns everything that the rate of this rank depends on, except the other ranks of the machine: a line
// that identifies the machine, and a line for the rest. Empty if the machine cannot be identified; then
// nothing is recorded.
std::string peak_place(Env& env, const Device& device, DType dtype);

// Returns the text of the record. `places` and `rates` (FLOP/s) are those of all ranks, which measured at the
// same time. Empty if there is nothing to record.
std::string peak_record(std::span<const std::string> places, std::span<const double> rates);

// Returns the sum of the rates that ranks in these places reach together, in FLOP/s. None if the record is
// empty or damaged, or has no measurement of one of the machines with the same ranks.
std::optional<double> recorded_peak(const std::string& record, std::span<const std::string> places);

}  // namespace holdfast::inline rank
