// Limits the instructions of oneDNN, which picks them from the processor by itself, for the whole process.
#pragma once

#include "kernels/cpu/isa.h"
#include "runtime/core/result.h"

namespace holdfast::kernels {

// Limits the instruction set of oneDNN, which is not configured by device. The limit holds for the whole
// process and only works before oneDNN's first use: before the first device, and before any description().
Result<void> limit_library_isa(CpuIsa isa);

}  // namespace holdfast::kernels
