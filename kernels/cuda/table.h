#pragma once

#include "kernels/registry.h"

namespace holdfast::kernels::cuda {

// Returns the registry of the implementations for CUDA devices.
const KernelRegistry& registry();

}  // namespace holdfast::kernels::cuda
