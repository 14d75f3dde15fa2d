// Returns paths that the build knows on this machine: absolute, or relative to the program, so that the tree
// can be moved.
#pragma once

#include <string>

namespace holdfast::inline launch {

std::string build_mpi_prefix();
std::string build_opal_prefix();     // for an MPI that does not know its own path; else empty
std::string build_tune_directory();  // configs/mpi

}  // namespace holdfast::inline launch
