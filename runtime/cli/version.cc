#include <fmt/core.h>

#include "parallel/group/mpi_loader.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/build_facts.h"
#include "runtime/device/device.h"
#include "runtime/rank/device_choice.h"

namespace holdfast::cli {

namespace {

// Prints the CUDA version of this build, for which neither a GPU nor a driver is needed.
void print_cuda_version(Env& env) {
  const Result<const CudaModule*> module = find_cuda_module(env);
  if (!module.ok()) {
    fmt::print("cuda     none: {}\n", module.error().message);
    return;
  }
  const int version = (*module)->runtime_version;
  fmt::print("cuda     {}.{}, kernels for {}\n", version / 1000, version % 1000 / 10, (*module)->built_for());
  const Result<std::vector<CudaFacts>> gpus = (*module)->devices();
  if (!gpus.ok()) fmt::print("gpu      none: {}\n", gpus.error().message);
  if (!gpus.ok()) return;
  for (const CudaFacts& gpu : *gpus) fmt::print("gpu      {}\n", text_of(gpu));
}

}  // namespace

void print_version() {
  const Result<MpiFacts> mpi = mpi_library_facts();
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  fmt::print("holdfast {} ({} build, {})\n", build_version(), build_type(), build_compiler());
  fmt::print("program  {}\n", program_digest(posix_env()));
  fmt::print("device   {}\n", device->description());
  print_cuda_version(posix_env());
  if (mpi.ok()) {
    fmt::print("mpi      {}{}\n", mpi->library, mpi->fault_tolerant ? " with ULFM" : "");
  } else {
    fmt::print("mpi      none: {}\n", mpi.error().message);
  }
}

}  // namespace holdfast::cli
