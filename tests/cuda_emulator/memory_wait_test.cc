// Memory of the emulated device that another process still holds.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/matmul.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/trial.h"
#include "tests/cuda_emulator/emulator.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t unit = std::uint64_t{8} << 20;  // of memory; the device has eight

class CudaMemoryWait : public testing::Test {
 protected:
  ~CudaMemoryWait() override {
    cuda_emulator::hold_memory(0, 0);
    cuda_emulator::resize_device(whole_);
  }
  static Result<void> allocate(std::uint64_t bytes, const MemoryWait& wait) {
    const std::unique_ptr<Device> device = std::move(make_cuda_device({.memory_wait = wait})).value();
    return outcome_of(device->allocate(MemoryKind::device, bytes));
  }

 private:
  std::size_t whole_ = cuda_emulator::resize_device(8 * unit);
};

TEST_F(CudaMemoryWait, OutlastsAProcessThatIsBeingTornDown) {
  cuda_emulator::hold_memory(7 * unit, 3);
  testing::internal::CaptureStderr();
  const Result<void> allocated = allocate(2 * unit, {});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(allocated.ok()) << allocated.error().message;
  EXPECT_THAT(said,
              HasSubstr("holdfast: emulated device (GPU 0) has 8.00 MiB of 64.00 MiB free, 16.00 MiB are "
                        "needed there for memory of the run: waits up to 1m for memory that other "
                        "processes hold"));
  EXPECT_THAT(said, HasSubstr("had room after 0."));
}

TEST_F(CudaMemoryWait, EndsAsACommunicationFailureSoThatTheRunIsStartedAgain) {
  cuda_emulator::hold_memory(7 * unit, 1'000'000);
  const Result<void> allocated = allocate(2 * unit, {.timeout_ms = 300});
  ASSERT_FALSE(allocated.ok());
  EXPECT_EQ(allocated.error().code, ExitCode::communication);
  EXPECT_EQ(allocated.error().reach, Reach::minute);
  EXPECT_THAT(allocated.error().message, HasSubstr("other processes still hold the rest"));
}

TEST_F(CudaMemoryWait, CoversPinnedMemory) {
  const std::unique_ptr<Device> device =
      std::move(make_cuda_device({.memory_wait = {.timeout_ms = 2'000}})).value();
  cuda_emulator::refuse_pinned_memory(2);
  const Result<void> allocated = outcome_of(device->allocate(MemoryKind::host_visible, unit));
  EXPECT_TRUE(allocated.ok()) << allocated.error().message;
  const std::unique_ptr<Device> hasty =
      std::move(make_cuda_device({.memory_wait = {.timeout_ms = 0}})).value();
  cuda_emulator::refuse_pinned_memory(1);
  const Result<void> refused = outcome_of(hasty->allocate(MemoryKind::host_visible, unit));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ExitCode::does_not_fit);
}

TEST(CudaTrial, AGpuThatDoesNotRunAKernelIsAFindingAboutItsHost) {
  constexpr int missing_gpu = 7;
  const Result<void> tried = try_device(missing_gpu, {});
  ASSERT_FALSE(tried.ok());
  EXPECT_EQ(tried.error().code, ExitCode::config) << tried.error().message;
  EXPECT_EQ(tried.error().reach, Reach::host) << tried.error().message;
}

TEST_F(CudaMemoryWait, IsNotForWhatWouldNeverFit) {
  const Result<void> alone = allocate(8 * unit - 1, {.timeout_ms = 300});
  EXPECT_TRUE(alone.ok());
  cuda_emulator::hold_memory(7 * unit, 1'000'000);
  const Result<void> too_large = allocate(9 * unit, {});
  ASSERT_FALSE(too_large.ok());
  EXPECT_EQ(too_large.error().code, ExitCode::does_not_fit) << too_large.error().message;
}

// How many ranks really share a GPU is not always known, so they are counted when the wait is over.
TEST_F(CudaMemoryWait, SaysAtItsEndThatTheRanksOfAGpuNeedTooMuch) {
  cuda_emulator::hold_memory(7 * unit, 1'000'000);
  const Result<void> together = allocate(3 * unit, {.timeout_ms = 300, .ranks_on_gpu = 3});
  ASSERT_FALSE(together.ok());
  EXPECT_EQ(together.error().code, ExitCode::does_not_fit) << together.error().message;
  cuda_emulator::hold_memory(7 * unit, 2);
  EXPECT_TRUE(allocate(3 * unit, {.ranks_on_gpu = 3}).ok()) << "they were not so many";
}

// Memory that this process holds itself is no reason to wait.
TEST_F(CudaMemoryWait, IsNotForMemoryOfThisProcess) {
  const std::unique_ptr<Device> device = std::move(make_cuda_device({})).value();
  const Result<OwnedMemory> arena = device->allocate(MemoryKind::device, 7 * unit);
  ASSERT_TRUE(arena.ok());
  const Result<OwnedMemory> more = device->allocate(MemoryKind::device, 2 * unit);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code, ExitCode::does_not_fit) << more.error().message;
}

TEST_F(CudaMemoryWait, CoversTheWorkspace) {
  const std::unique_ptr<Device> device = std::move(make_cuda_device({})).value();
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
  cuda_emulator::hold_memory(8 * unit, 2);
  EXPECT_TRUE(plan().ok());
  EXPECT_GT(device->workspace_bytes(), 0U);
}

}  // namespace
}  // namespace holdfast::test
