// Names of devices.
#include "runtime/rank/device_choice.h"

#include <gtest/gtest.h>

namespace holdfast {
namespace {

TEST(DeviceChoice, NamesAGpuAsNvidiaSmiDoes) {
  CudaFacts gpu;
  gpu.uuid = "0123456789abcdef0123456789abcdef";
  EXPECT_EQ(hardware_name(gpu), "GPU-01234567-89ab-cdef-0123-456789abcdef");
  gpu.uuid = "short";
  EXPECT_EQ(hardware_name(gpu), "GPU-short");
}

TEST(DeviceChoice, RanksOfAHostShareItsProcessors) {
  Config config;
  config.device = "cpu";
  EXPECT_EQ(hardware_name(posix_env(), config, 3), "cpu");
}

}  // namespace
}  // namespace holdfast
