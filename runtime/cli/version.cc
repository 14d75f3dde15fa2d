#include <fmt/format.h>

#include "kernels/device.h"
#include "parallel/mpi/mpi_session.h"
#include "runtime/cli/build_facts.h"
#include "runtime/cli/commands.h"

namespace holdfast {

void print_version() {
  const MpiFacts mpi = mpi_library_facts();
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  fmt::print("holdfast {} ({} build, {})\n", build_version(), build_type(), build_compiler());
  fmt::print("program  {}\n", program_digest(posix_env()));
  fmt::print("device   {}\n", device->description());
  fmt::print("mpi      {}{}\n", mpi.library, mpi.fault_tolerant ? " with ULFM" : "");
}

}  // namespace holdfast
