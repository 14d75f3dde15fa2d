// The emulated runtime refuses what a GPU refuses.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "tests/cuda_emulator/shared_memory.h"

namespace holdfast::test {
namespace {

void does_nothing(int) {}
void does_as_little(int) {}

class CudaLimits : public testing::Test {
 protected:
  CudaLimits() { cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  ~CudaLimits() override {
    cudaStreamDestroy(stream_);
    cudaGetLastError();
  }
  cudaError_t launch(void (*kernel)(int), std::size_t shared_bytes) {
    cudaLaunchConfig_t config = {};
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream_;
    return cudaLaunchKernelEx(&config, kernel, 0);
  }
  cudaStream_t stream_ = nullptr;
};

TEST_F(CudaLimits, SharedMemoryAbove48KibWantsToBeAskedFor) {
  EXPECT_EQ(launch(does_nothing, 48 << 10), cudaSuccess);
  EXPECT_EQ(launch(does_nothing, (48 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(does_nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10),
            cudaSuccess);
  EXPECT_EQ(launch(does_nothing, 64 << 10), cudaSuccess);
  EXPECT_EQ(launch(does_nothing, (64 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(launch(does_as_little, 64 << 10), cudaErrorInvalidValue) << "it was for the other kernel";
}

TEST_F(CudaLimits, SharedMemoryIsThatOfTheArchitecture) {
  EXPECT_EQ(cuda_emulator::shared_bytes_of_block(80), 163U << 10);
  EXPECT_EQ(cuda_emulator::shared_bytes_of_block(89), 99U << 10);
  EXPECT_EQ(cuda_emulator::shared_bytes_of_block(90), 227U << 10);
  ASSERT_EQ(cuda_emulator::compute_capability(), 80);
  const auto most = static_cast<int>(cuda_emulator::dynamic_shared_bytes(80));
  EXPECT_EQ(cudaFuncSetAttribute(does_nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
            cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(does_nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1),
            cudaErrorInvalidValue);
  EXPECT_EQ(launch(does_nothing, static_cast<std::size_t>(most)), cudaSuccess);
}

// The thread that captures may not ask how far the GPU is: the capture is lost then.
TEST_F(CudaLimits, QueriesBreakACaptureOfTheirThread) {
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  for (const bool queries : {false, true}) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(launch(does_nothing, 0), cudaSuccess);
    if (queries) {
      EXPECT_EQ(cudaEventQuery(event), cudaErrorStreamCaptureUnsupported);
    }
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph),
              queries ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  cudaEventDestroy(event);
}

}  // namespace
}  // namespace holdfast::test
