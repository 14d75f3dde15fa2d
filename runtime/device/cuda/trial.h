// Tests whether a GPU runs the kernels of this build, before anything else uses it: a library that loads may
// have no kernels for the GPU, and the driver may be too old for it.
#pragma once

#include <string>

#include "runtime/device/cuda_loader.h"

namespace holdfast::device {

std::string cuda_built_for();  // "sm_80, sm_90": what the kernels were compiled for

// Runs one kernel of one thread and checks its result. ExitCode::config with a clause that names the GPU, its
// compute capability and the targets that the kernels were compiled for; ExitCode::communication when others
// hold the GPU's memory for longer than `wait` permits. Leaves the GPU selected for this thread.
Result<void> try_device(int ordinal, const MemoryWait& wait);

// Implements CudaModule::try_own_instructions (runtime/device/cuda_loader.h).
Result<std::string> try_own_instructions(int ordinal);

}  // namespace holdfast::device
