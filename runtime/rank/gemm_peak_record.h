// What the rate of GemmPeak was when this run measured it, and where: a start on the same machines, with the
// same ranks on each, need not measure it again while everybody waits. A machine is another one after it
// booted. Pure, but for peak_place().
#pragma once

#include <optional>
#include <span>
#include <string>

#include "kernels/device.h"
#include "runtime/core/tensor.h"
#include "runtime/os/env.h"

namespace holdfast::inline rank {

// All that the rate of this rank depends on, but for the other ranks of the machine: a line that says which
// machine that is, and one for the rest. Empty: it cannot be told, and then nothing is remembered.
std::string peak_place(Env& env, const Device& device, DType dtype);

// The text to keep. `places` and `rates` (FLOP/s) of all ranks, which measured at the same time. Empty: none.
std::string peak_record(std::span<const std::string> places, std::span<const double> rates);

// What ranks in these places reach together, in FLOP/s. None: the record is empty or damaged, or nobody has
// measured on one of the machines, or with other ranks there.
std::optional<double> recorded_peak(const std::string& record, std::span<const std::string> places);

}  // namespace holdfast::inline rank
