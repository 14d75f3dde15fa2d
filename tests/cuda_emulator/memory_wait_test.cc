// Memory of the emulated device that another process still holds.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/trial.h"
#include "kernels/matmul.h"
#include "tests/cuda_emulator/emulator.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t gib = std::uint64_t{1} << 30;  // of the 8 that the device has

class CudaMemoryWait : public testing::Test {
 protected:
  ~CudaMemoryWait() override { cuda_emulator::hold_memory(0, 0); }
  static Result<void> allocate(std::uint64_t bytes, const MemoryWait& wait) {
    const std::unique_ptr<Device> device = std::move(cuda::make_device({.memory_wait = wait})).value();
    return outcome_of(device->allocate(MemoryPlace::device, bytes));
  }
};

TEST_F(CudaMemoryWait, OutlastsAProcessThatIsBeingTornDown) {
  cuda_emulator::hold_memory(7 * gib, 3);
  testing::internal::CaptureStderr();
  const Result<void> allocated = allocate(2 * gib, {});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(allocated.ok()) << allocated.error().message;
  EXPECT_THAT(said, HasSubstr("holdfast: emulated device (GPU 0) has 1.00 GiB of 8.00 GiB free, 2.00 GiB are "
                              "needed there for memory of the run: waits up to 1m for memory that other "
                              "processes hold"));
  EXPECT_THAT(said, HasSubstr("had room after 0."));
}

TEST_F(CudaMemoryWait, EndsAsACommunicationFailureSoThatTheRunIsStartedAgain) {
  cuda_emulator::hold_memory(7 * gib, 1'000'000);
  const Result<void> allocated = allocate(2 * gib, {.timeout_ms = 300});
  ASSERT_FALSE(allocated.ok());
  EXPECT_EQ(allocated.error().code, ExitCode::communication);
  EXPECT_THAT(allocated.error().message, HasSubstr("other processes still hold the rest"));
}

TEST_F(CudaMemoryWait, IsNotForWhatWouldNeverFit) {
  cuda_emulator::hold_memory(7 * gib, 1'000'000);
  for (const auto& [bytes, ranks] : {std::pair{9 * gib, 1}, std::pair{3 * gib, 3}}) {
    const Result<void> allocated = allocate(bytes, {.ranks_on_gpu = ranks});
    ASSERT_FALSE(allocated.ok());
    EXPECT_EQ(allocated.error().code, ExitCode::does_not_fit) << allocated.error().message;
  }
}

TEST_F(CudaMemoryWait, CoversTheWorkspace) {
  const std::unique_ptr<Device> device = std::move(cuda::make_device({})).value();
  const auto plan = [&] {
    device->begin_planning();
    device->launch(Matmul{.m = 32,
                          .n = 48,
                          .k = 4096,
                          .lda = 32,
                          .ldb = 48,
                          .ldc = 48,
                          .transpose_a = true,
                          .accumulate = true,
                          .dtype = DType::bf16});
    return device->end_planning();
  };
  cuda_emulator::hold_memory(8 * gib, 2);
  EXPECT_TRUE(plan().ok());
  EXPECT_GT(device->workspace_bytes(), 0U);
}

TEST_F(CudaMemoryWait, CoversTheFirstKernel) {
  EXPECT_TRUE(cuda::try_device(0, {.timeout_ms = 0}).ok());
}

}  // namespace
}  // namespace holdfast::test
