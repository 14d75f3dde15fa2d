#pragma once

#include <span>

#include "kernels/implementation.h"

namespace holdfast::kernels::cuda {

// Returns the lists of kernels/cuda/custom/*.cu; CMake writes the function.
std::span<const ImplementationList* const> custom_lists();

}  // namespace holdfast::kernels::cuda
