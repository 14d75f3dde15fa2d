// Names of devices.
#include "runtime/rank/device_choice.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/config/loader.h"

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

TEST(DeviceChoice, ALibraryThatDoesNotLoadIsAFindingAboutItsHost) {
  setenv(cuda_module_variable, "/no/such/library.so", 1);
  Config config;
  config.device = "cuda";
  const Result<void> checked = check_device(posix_env(), config, {});
  unsetenv(cuda_module_variable);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().code, ExitCode::config);
  EXPECT_EQ(checked.error().reach, Reach::host) << checked.error().message;
}

}  // namespace
}  // namespace holdfast
