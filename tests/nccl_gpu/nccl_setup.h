// Chooses what the tests of this folder run on: NCCL and GPUs as they are, or the double of the one and the
// emulator of the other (main.cc).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "runtime/device/cuda_loader.h"
#include "runtime/device/nccl_library.h"
#include "tests/parallel/nccl/nccl_double.h"

namespace holdfast::test {

bool doubled();  // --double was given
const CudaModule& cuda_module();

constexpr std::int64_t timeout_ms = 60'000;

// The NCCL of all ranks of one test. Outlives them.
class NcclOfTest {
 public:
  ~NcclOfTest() { EXPECT_THAT(world_.violations(), testing::IsEmpty()); }
  // The NCCL of one rank. It loads: main() has found that it can.
  std::unique_ptr<NcclLibrary> make();

 private:
  NcclWorld world_;  // of the double
};

}  // namespace holdfast::test
