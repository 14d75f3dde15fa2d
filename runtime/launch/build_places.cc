#include "runtime/launch/build_places.h"

namespace holdfast::inline launch {

std::string build_mpi_prefix() {
  return HF_MPI_PREFIX;
}
std::string build_opal_prefix() {
  return HF_OPAL_PREFIX;
}
std::string build_tune_directory() {
  return HF_TUNE_DIRECTORY;
}

}  // namespace holdfast::inline launch
