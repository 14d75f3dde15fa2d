// Whether a GPU runs what this build has, asked before anything else is: a library that loads may have no
// kernels for the GPU that it meets, and the driver may be too old for it.
#pragma once

#include <string>

#include "kernels/cuda_loader.h"

namespace holdfast::inline kernels::cuda {

std::string built_for();  // "sm_80, sm_90": what the kernels were compiled for

// Runs one kernel of one thread and looks at what it wrote. ExitCode::config with a clause that names the
// GPU, its compute capability and what the kernels were compiled for; ExitCode::communication when others
// hold the GPU's memory for longer than `wait` says. Leaves the GPU chosen for this thread.
Result<void> try_device(int ordinal, const MemoryWait& wait);

// Implements CudaModule::try_own_instructions (kernels/cuda_loader.h).
Result<std::string> try_own_instructions(int ordinal);

}  // namespace holdfast::inline kernels::cuda
