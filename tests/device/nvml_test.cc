// What is read of a GPU's health, from a double of the driver's library that has recorded it.
#include "runtime/device/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/os/env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* double_file = HF_BINARY_DIR "/bin/nvml_double/libnvidia-ml.so.1";

class NvmlReadings : public testing::Test {
 protected:
  NvmlReadings() { setenv("NVML_DOUBLE", (directory_ / "readings").c_str(), 1); }
  ~NvmlReadings() override { unsetenv("NVML_DOUBLE"); }

  void record(const std::string& lines) {
    ASSERT_TRUE(posix_env().replace_text(directory_ / "readings", lines).ok());
  }
  Result<GpuReadings> read(const std::string& bus_id) {
    Result<std::unique_ptr<Nvml>> nvml = load_nvml(double_file);
    EXPECT_TRUE(nvml.ok()) << nvml.error().message;
    return (*nvml)->read(bus_id);
  }

  TemporaryDirectory directory_;
};

TEST_F(NvmlReadings, AreThoseOfTheGpuAtItsPlaceOnTheBus) {
  record(
      "e0e0:00:00.0 temperature 41\ne0e0:00:00.0 old_temperature 13\ne0e0:00:00.0 power 699800\n"
      "e0e0:00:00.0 power_limit 700000\ne0e0:00:00.0 sm_clock 1755\ne0e0:00:00.0 memory_clock 2619\n"
      "e0e0:00:00.0 clock_reasons 4\ne0e0:00:00.0 ecc_corrected 3\ne0e0:00:00.0 ecc_uncorrected 1\n"
      "e0e0:00:00.0 rows_corrected 0\ne0e0:00:00.0 rows_uncorrected 2\ne0e0:00:00.0 remap_pending 1\n"
      "e0e0:00:00.0 remap_failed 0\ne0e0:00:00.0 pcie_replays 7\ne0e0:00:00.0 recovery_action 1\n"
      "e0e0:00:00.0 nvlink_crc_errors 5000000000\ne0e0:00:00.0 nvlink_replays 4\ne0e0:00:00.0 "
      "nvlink_recoveries 2\n"
      "e0e0:01:00.0 temperature 99\n");
  const Result<GpuReadings> gpu = read("e0e0:00:00.0");
  ASSERT_TRUE(gpu.ok()) << gpu.error().message;
  EXPECT_EQ(gpu->temperature_C, 41);
  EXPECT_EQ(gpu->power_mW, 699'800);
  EXPECT_EQ(gpu->power_limit_mW, 700'000);
  EXPECT_EQ(gpu->sm_MHz, 1755);
  EXPECT_EQ(gpu->memory_MHz, 2619);
  EXPECT_EQ(gpu->clock_reasons, 4U);
  EXPECT_EQ(gpu->ecc_corrected, 3U);
  EXPECT_EQ(gpu->ecc_uncorrected, 1U);
  EXPECT_EQ(gpu->rows_corrected, 0);
  EXPECT_EQ(gpu->rows_uncorrected, 2);
  EXPECT_EQ(gpu->remap_pending, true);
  EXPECT_EQ(gpu->remap_failed, false);
  EXPECT_EQ(gpu->pcie_replays, 7);
  EXPECT_EQ(gpu->recovery_action, 1);
  EXPECT_EQ(gpu->nvlink_crc_errors, 5'000'000'000);
  EXPECT_EQ(gpu->nvlink_replays, 4);
  EXPECT_EQ(gpu->nvlink_recoveries, 2);
  EXPECT_EQ(
      text_of(*gpu),
      "41 C, 699 of 700 W, SM at 1755 MHz, memory at 2619 MHz; clocks lowered by the power limit; ECC errors "
      "since the driver was loaded: 3 corrected, 1 uncorrected; rows of memory replaced: 0 corrected, 2 "
      "uncorrected; a row is replaced at the next reset of the GPU; 7 replays on the PCI bus; NVLink: "
      "5000000000 errors of checksums, 4 replays, 2 recoveries; the driver "
      "advises to reset the GPU");
}

TEST_F(NvmlReadings, ThatAGpuHasNotAreLeftOut) {
  record("e0e0:00:00.0 old_temperature 38\ne0e0:00:00.0 sm_clock 345\ne0e0:00:00.0 clock_reasons 1\n");
  const Result<GpuReadings> gpu = read("e0e0:00:00.0");
  ASSERT_TRUE(gpu.ok());
  EXPECT_EQ(gpu->temperature_C, 38) << "an older driver has the older call alone";
  EXPECT_FALSE(gpu->power_mW || gpu->power_limit_mW || gpu->memory_MHz || gpu->ecc_corrected ||
               gpu->ecc_uncorrected || gpu->rows_corrected || gpu->remap_pending || gpu->remap_failed ||
               gpu->pcie_replays || gpu->recovery_action);
  EXPECT_EQ(text_of(*gpu), "38 C, SM at 345 MHz") << "an idle GPU is not slowed down";
  EXPECT_EQ(text_of({}), "no readings");
}

TEST(NvmlText, NamesWhatIsWrong) {
  EXPECT_EQ(text_of({.clock_reasons = 0x8 | 0x20 | 0x40 | 0x80}),
            "clocks lowered by the hardware, heat (driver), heat (hardware), the power supply (brake)");
  EXPECT_THAT(text_of({.remap_pending = false, .remap_failed = true}),
              AllOf(HasSubstr("exchange the GPU"), Not(HasSubstr("next reset"))));
  EXPECT_EQ(text_of({.recovery_action = 2}), "the driver advises to restart the host");
  EXPECT_EQ(text_of({.recovery_action = 77}), "the driver advises action 77");
}

TEST(NvmlNames, AreThoseOfTheRules) {
  using Named = std::vector<std::pair<std::string, double>>;
  EXPECT_EQ(named_readings({.temperature_C = 61, .clock_reasons = 0x44, .remap_pending = true}),
            (Named{{"temperature_C", 61}, {"remap_pending", 1}, {"is_slowed", 1}}));
  EXPECT_EQ(named_readings({.clock_reasons = 0x4}), (Named{{"is_slowed", 0}}))
      << "its power limit is no fault";
  EXPECT_EQ(named_readings({}), Named());
}

TEST_F(NvmlReadings, OfAGpuThatIsLostAreASentence) {
  record("e0e0:00:00.0 lost 1\n");
  const Result<GpuReadings> lost = read("e0e0:00:00.0"), other = read("e0e0:01:00.0");
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().message, "NVML says of the GPU at e0e0:00:00.0: GPU is lost");
  EXPECT_EQ(lost.error().reach, Reach::host);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().message, "NVML says of the GPU at e0e0:01:00.0: Not Found");
}

TEST_F(NvmlReadings, NeedALibraryAndADriver) {
  const Result<std::unique_ptr<Nvml>> missing = load_nvml("/no/such/libnvidia-ml.so.1");
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message,
              HasSubstr("NVML could not be loaded from /no/such/libnvidia-ml.so.1: "));
  EXPECT_EQ(missing.error().code, ExitCode::config);
  const Result<std::unique_ptr<Nvml>> other = load_nvml("libm.so.6");
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("it is another library"));
  record("driver 9\n");
  const Result<std::unique_ptr<Nvml>> alone = load_nvml(double_file);
  ASSERT_FALSE(alone.ok());
  EXPECT_THAT(alone.error().message, HasSubstr("Driver Not Loaded"));
}

}  // namespace
}  // namespace holdfast::test
