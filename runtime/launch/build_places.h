// What the build knows about this machine: absolute, or relative to the program, so that the tree can be
// moved.
#pragma once

#include <string>

namespace holdfast::inline launch {

std::string build_mpi_prefix();
std::string build_opal_prefix();     // of an MPI that does not know where it lies; else empty
std::string build_tune_directory();  // configs/mpi

}  // namespace holdfast::inline launch
