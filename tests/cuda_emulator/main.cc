// The kernel tests (tests/kernels) on the emulated CUDA device. Variants are orders in which threads take
// turns.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "kernels/cuda/table.h"
#include "runtime/device/cuda/cuda_device.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/kernels/kernel_cases.h"

namespace {

using namespace holdfast;
using namespace holdfast::test;

Device& emulated(const Implementation& implementation, int variant) {
  static std::unique_ptr<Device> device;
  static const Implementation* of = nullptr;
  if (of != &implementation) {
    constexpr int usual = 80;
    cuda_emulator::set_compute_capability(implementation.needs_gpu > 0 ? implementation.needs_gpu : usual);
    Result<std::unique_ptr<Device>> made =
        make_cuda_device({.kernels = {{implementation.op, implementation.name}}});
    HF_CHECK(made.ok(), "{}", made.error().message);
    device = std::move(made).value();
    of = &implementation;
  }
  cuda_emulator::set_order(static_cast<std::uint64_t>(variant - 1));
  return *device;
}

// The tests of all implementations, and those named Cuda...; what the files of tests/kernels have beside them
// is about the CPU device.
std::string filter() {
  std::string patterns = "Cuda*:";
  for (std::size_t op = 0; op < op_count; ++op) {
    for (const Implementation* each : cuda::registry().of(static_cast<OpId>(op)))
      patterns += fmt::format("{0}.{1}:{0}.DISABLED_Long_{1}:", op_names[op], each->name);
  }
  return patterns;
}

}  // namespace

int main(int argc, char** argv) {
  GTEST_FLAG_SET(filter, filter());  // unless the command line has one
  testing::InitGoogleTest(&argc, argv);
  test::register_kernel_tests(cuda::registry(), {}, emulated);
  return RUN_ALL_TESTS();
}
