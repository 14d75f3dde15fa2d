// The kernel tests (tests/kernels) on a GPU, and nothing else of those files. Each implementation runs three
// times, which must give the same bits. Without a GPU it says why and exits with 77, which ctest counts as
// skipped.
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/table.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/kernels/op_test.h"

namespace {

using namespace holdfast;

constexpr int skipped = 77;

Device& device_for(const Implementation& implementation, int) {
  static std::unique_ptr<Device> device;
  static const Implementation* of = nullptr;
  if (of != &implementation) {
    device.reset();
    Result<std::unique_ptr<Device>> made =
        cuda::make_device({.kernels = {{implementation.op, implementation.name}}});
    HF_CHECK(made.ok(), "{}", made.error().message);
    device = std::move(made).value();
    of = &implementation;
  }
  return *device;
}

// Reached by both sides. Tests wait for the device before they look at a tensor.
void* allocate_managed(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocManaged(&memory, std::max<std::size_t>(bytes, 1));
  HF_CHECK(error == cudaSuccess, "{} bytes of managed memory: {}", bytes, cudaGetErrorString(error));
  return memory;
}
void release_managed(void* memory) {
  cudaFree(memory);
}

}  // namespace

int main(int argc, char** argv) {
  GTEST_FLAG_SET(filter, "*.cuda*:*.Long_cuda*:*.cublaslt*:*.Long_cublaslt*");
  testing::InitGoogleTest(&argc, argv);
  test::register_kernel_tests(cuda::registry(), {}, device_for, /*long_too=*/true);
  if (!GTEST_FLAG_GET(list_tests)) {
    const Result<std::vector<CudaFacts>> gpus = cuda::devices();
    if (!gpus.ok()) {
      fmt::print("skipped: {}\n", gpus.error().message);
      return skipped;
    }
    const CudaFacts& gpu = gpus->front();
    fmt::print("on {} (sm_{}{})\n", gpu.name, gpu.compute_major, gpu.compute_minor);
    test::tensor_memory() = {allocate_managed, release_managed};
  }
  return RUN_ALL_TESTS();
}
