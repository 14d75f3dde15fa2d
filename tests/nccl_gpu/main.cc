// test_nccl_gpu [--double]: NCCL, through the library that the program loads; with --double its double
// (tests/parallel/nccl) on the emulated device (tests/cuda_emulator). Without NCCL or a GPU it says why and
// exits with 77, which ctest counts as skipped.
#include <fmt/core.h>
#include <stdlib.h>

#include <algorithm>
#include <string_view>

#include "tests/nccl_gpu/nccl_setup.h"
#include "tests/parallel/nccl/real_nccl.h"

namespace holdfast::test {
namespace {

constexpr int skipped = 77;
bool is_doubled = false;

}  // namespace

bool doubled() {
  return is_doubled;
}

const CudaModule& cuda_module() {
  const char* const file = doubled() ? "libholdfast_cuda_emulated.so" : cuda_module_file;
  const Result<const CudaModule*> module = load_cuda_module(fmt::format("{}/bin/{}", HF_BINARY_DIR, file));
  HF_CHECK(module.ok(), "{}", module.error().message);
  return **module;
}

std::unique_ptr<NcclLibrary> NcclOfTest::make() {
  constexpr int modern = 23007;  // takes ranks that share a GPU
  if (doubled()) return std::make_unique<NcclDouble>(world_, modern);
  Result<std::unique_ptr<NcclLibrary>> library = load_real_nccl();
  HF_CHECK(library.ok(), "{}", library.error().message);
  return std::move(library).value();
}

int run_tests() {
  if (!doubled() && !GTEST_FLAG_GET(list_tests)) {
    const Result<std::unique_ptr<NcclLibrary>> library = load_real_nccl();
    if (!library.ok()) {
      fmt::print("skipped: {}\n", library.error().message);
      return skipped;
    }
    fmt::print("NCCL {}\n", nccl_version_text((*library)->version()));
  }
  return RUN_ALL_TESTS();
}

}  // namespace holdfast::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  holdfast::test::is_doubled = std::any_of(
      argv + 1, argv + argc, [](const char* word) { return std::string_view(word) == "--double"; });
  if (holdfast::test::doubled()) ::setenv("EMULATED_GPUS", "2", 1);
  return holdfast::test::run_tests();
}
