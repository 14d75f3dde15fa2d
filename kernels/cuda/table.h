#pragma once

#include "kernels/registry.h"

namespace holdfast::inline kernels::cuda {

// Of the implementations for CUDA devices.
const KernelRegistry& registry();

}  // namespace holdfast::inline kernels::cuda
