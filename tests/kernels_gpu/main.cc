// The kernel tests (tests/kernels) on a GPU, and nothing else of those files. Each implementation runs three
// times, which must give the same bits. Without a GPU it says why and exits with 77, which ctest counts as
// skipped.
#include <cuda_runtime.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cuda/table.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/trial.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/kernels/op_test.h"

namespace {

using namespace holdfast::test;

constexpr int skipped = 77;

Device& device_for(const Implementation& implementation, int) {
  static std::unique_ptr<Device> device;
  static const Implementation* of = nullptr;
  if (of != &implementation) {
    device.reset();
    Result<std::unique_ptr<Device>> made =
        make_cuda_device({.kernels = {{implementation.op, implementation.name}}});
    HF_CHECK(made.ok(), "{}", made.error().message);
    device = std::move(made).value();
    of = &implementation;
  }
  return *device;
}

// Host memory that the GPU reaches, too. Not managed memory, whose pages move at the first touch: virtualised
// GPUs have been seen to hang in it. Tests wait for the device before they look at a tensor.
void* allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, std::max<std::size_t>(bytes, 1), cudaHostAllocMapped);
  HF_CHECK(error == cudaSuccess, "{} bytes of pinned memory: {}", bytes, cudaGetErrorString(error));
  return memory;
}
void release_pinned(void* memory) {
  cudaFreeHost(memory);
}

// The tests of all implementations, those of kernels/cuda/custom among them; what the files of tests/kernels
// have beside them is about the CPU device.
std::string filter() {
  std::string patterns = "OwnInstructions.*:";
  for (std::size_t op = 0; op < op_count; ++op) {
    for (const Implementation* each : cuda::registry().of(static_cast<OpId>(op)))
      patterns += fmt::format("{0}.{1}:{0}.Long_{1}:", op_names[op], each->name);
  }
  return patterns;
}

// sm_90a: instructions of one kind of GPU, for which the build has kernels of their own.
TEST(OwnInstructions, GiveTheRightProduct) {
  const Result<std::string> outcome = try_own_instructions(0);
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  if (outcome->empty()) GTEST_SKIP() << "this GPU has none that the build uses";
}

}  // namespace

int main(int argc, char** argv) {
  GTEST_FLAG_SET(filter, filter());  // unless the command line has one
  testing::InitGoogleTest(&argc, argv);
  holdfast::test::register_kernel_tests(cuda::registry(), {}, device_for, /*long_too=*/true);
  if (!GTEST_FLAG_GET(list_tests)) {
    const Result<std::vector<CudaFacts>> gpus = cuda_devices();
    if (!gpus.ok()) {
      fmt::print("skipped: {}\n", gpus.error().message);
      return skipped;
    }
    const CudaFacts& gpu = gpus->front();
    fmt::print("on {} (sm_{}{})\n", gpu.name, gpu.compute_major, gpu.compute_minor);
    holdfast::test::tensor_memory() = {allocate_pinned, release_pinned};
  }
  return RUN_ALL_TESTS();
}
