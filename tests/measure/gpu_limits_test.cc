#include <gtest/gtest.h>

#include "runtime/measure/measured_device.h"

namespace holdfast::test {
namespace {

// An op is held against the larger of its bytes and its products, a matrix product of either type too.
TEST(GpuLimits, FollowFromTheRatesOfCopyAndProduct) {
  GpuLimits limits(
      {.copied_bytes_per_second = 1e9, .fp32_flops_per_second = 1e9, .bf16_flops_per_second = 1e12}, 1000);
  EXPECT_DOUBLE_EQ(limits.stream_seconds({.bytes_read = 300, .bytes_written = 200}).value(), 500e-9);
  const Matmul fp32{.m = 100, .n = 100, .k = 100, .lda = 100, .ldb = 100, .ldc = 100};
  EXPECT_DOUBLE_EQ(limits.product_seconds(fp32), 2e-3);
  Matmul bf16 = fp32;
  bf16.dtype = bf16.dtype_c = DType::bf16;
  EXPECT_DOUBLE_EQ(limits.product_seconds(bf16), 60e-6) << "3 x 20,000 bytes";
  EXPECT_DOUBLE_EQ(op_seconds(limits, {.flops = 1e6, .bytes_read = 300}, DType::fp32).value(), 1e-3);
  EXPECT_EQ(limits.level_of(1000), "L2");
  EXPECT_EQ(limits.level_of(1001), "DRAM");
}

}  // namespace

}  // namespace holdfast::test
