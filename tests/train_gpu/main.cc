// test_train_gpu [--emulated]: whole models on a GPU, through the library that the program loads; with
// --emulated on the emulator (tests/cuda_emulator). Without a GPU it says why and exits with 77, which ctest
// counts as skipped.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <string_view>

#include "runtime/rank/device_choice.h"
#include "tests/train_gpu/gpu.h"

namespace holdfast::test {
namespace {

constexpr int skipped = 77;
constexpr const char* module_variable = "HOLDFAST_CUDA_MODULE";
constexpr const char* emulator = HF_BINARY_DIR "/bin/libholdfast_cuda_emulated.so";

}  // namespace

bool emulated() {
  return posix_env().variable(module_variable) == emulator;
}

std::unique_ptr<Device> make_gpu_device() {
  Config config;
  config.device = "cuda";
  Result<std::unique_ptr<Device>> device = make_device(posix_env(), config, {}, {});
  HF_CHECK(device.ok(), "{}", device.error().message);
  return std::move(device).value();
}

int run_tests() {
  if (!GTEST_FLAG_GET(list_tests)) {
    const Result<CudaPresence> cuda = find_cuda(posix_env());
    if (!cuda.ok()) {
      fmt::print("skipped: {}\n", cuda.error().message);
      return skipped;
    }
    const CudaFacts& gpu = cuda->devices.front();
    fmt::print("on {} (sm_{}{})\n", gpu.name, gpu.compute_major, gpu.compute_minor);
  }
  return RUN_ALL_TESTS();
}

}  // namespace holdfast::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto is_emulated = [](const char* word) { return std::string_view(word) == "--emulated"; };
  if (std::any_of(argv + 1, argv + argc, is_emulated)) {
    ::setenv(holdfast::test::module_variable, holdfast::test::emulator, 1);
  }
  return holdfast::test::run_tests();
}
