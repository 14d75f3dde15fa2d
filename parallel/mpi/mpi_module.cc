// The one symbol of libholdfast_mpi.so that can be seen from outside.
#include "parallel/mpi/mpi_session.h"

namespace holdfast::parallel {

extern "C" const MpiModule* holdfast_mpi_module();

const MpiModule* holdfast_mpi_module() {
  static constexpr MpiModule module = {.facts = facts_of_linked_mpi, .start = start_mpi_session};
  return &module;
}

}  // namespace holdfast::parallel
