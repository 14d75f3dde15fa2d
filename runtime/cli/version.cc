#include <fmt/format.h>

#include "kernels/device.h"
#include "parallel/mpi_loader.h"
#include "runtime/cli/build_facts.h"
#include "runtime/cli/commands.h"

namespace holdfast {

void print_version() {
  const Result<MpiFacts> mpi = mpi_library_facts();
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  fmt::print("holdfast {} ({} build, {})\n", build_version(), build_type(), build_compiler());
  fmt::print("program  {}\n", program_digest(posix_env()));
  fmt::print("device   {}\n", device->description());
  if (mpi.ok()) {
    fmt::print("mpi      {}{}\n", mpi->library, mpi->fault_tolerant ? " with ULFM" : "");
  } else {
    fmt::print("mpi      none: {}\n", mpi.error().message);
  }
}

}  // namespace holdfast
