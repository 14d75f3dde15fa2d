#pragma once

#include "kernels/registry.h"

namespace holdfast::cuda {

// Of the implementations for CUDA devices.
const KernelRegistry& registry();

}  // namespace holdfast::cuda
