#pragma once

#include "kernels/registry.h"

namespace holdfast::inline kernels::cuda {

// Returns the registry of the implementations for CUDA devices.
const KernelRegistry& registry();

}  // namespace holdfast::inline kernels::cuda
