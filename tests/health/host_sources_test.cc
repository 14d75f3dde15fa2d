#include "runtime/health/host_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "runtime/os/kernel_log.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class HostSourcesTest : public testing::Test {
 protected:
  void file(const std::string& path, const std::string& text) {
    const std::string whole = folder_.path() + path;
    ASSERT_TRUE(posix_env().make_directories(whole.substr(0, whole.rfind('/'))).ok());
    ASSERT_TRUE(posix_env().replace_text(whole, text).ok());
  }
  // Values by source, part and name.
  std::map<std::string, std::optional<double>> look(HostSources& sources) {
    std::map<std::string, std::optional<double>> values;
    for (const HealthReading& reading : sources.look())
      values[reading.source + " " + reading.part + " " + reading.name] = reading.value;
    return values;
  }

  TemporaryDirectory folder_;
};

TEST_F(HostSourcesTest, AreReadWhereTheKernelHasThem) {
  file("/sys/class/net/eth0/operstate", "up\n");
  file("/sys/class/net/eth0/device/vendor", "0x1af4\n");
  file("/sys/class/net/eth0/statistics/rx_errors", "5\n");
  file("/sys/class/net/eth0/statistics/tx_errors", "2\n");
  file("/sys/class/net/eth0/carrier_changes", "1\n");
  file("/sys/class/net/bridge/operstate", "down\n");
  file("/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "9\n");
  file("/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3\n");
  file("/sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "4\n");
  file("/proc/meminfo",
       "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n");
  file("/proc/pressure/memory",
       "some avg10=9.0 avg60=8.0 avg300=7.0 total=1\nfull avg10=3.0 avg60=2.50 avg300=1.0 total=1\n");
  file("/proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: NVIDIA H200\n");
  int asked = 0;  // the GPU is lost after two times
  HostSources sources(posix_env(), {.root = folder_.path(), .disks = {folder_.path()}, .reads_log = false},
                      [&](const std::string& gpu) {
                        EXPECT_EQ(gpu, "0000:18:00.0");
                        using Readings = std::vector<std::pair<std::string, double>>;
                        return ++asked > 2 ? Readings() : Readings{{"temperature_C", 61}, {"is_slowed", 1}};
                      });
  auto values = look(sources);
  EXPECT_EQ(values["net eth0 is_up"], 1);
  EXPECT_EQ(values["net eth0 errors"], 7);
  EXPECT_EQ(values["net eth0 carrier_changes"], 1);
  EXPECT_FALSE(values.contains("net bridge is_up")) << "it is no device";
  EXPECT_EQ(values["infiniband mlx5_0/1 symbol_error"], 9);
  EXPECT_EQ(values["cpu  throttle_count"], 7);
  EXPECT_EQ(values["memory  available_percent"], 25);
  EXPECT_EQ(values["pressure  memory_full_percent"], 2.5);
  EXPECT_EQ(values["nvml 0000:18:00.0 temperature_C"], 61);
  EXPECT_EQ(values["nvml 0000:18:00.0 is_slowed"], 1);
  EXPECT_GT(values["disk " + folder_.path() + " free_MB"], 0);
  EXPECT_FALSE(values.contains("clock  step_ms")) << "nothing to compare with yet";
  EXPECT_THAT(sources.missing(), ElementsAre(HasSubstr("/proc/pressure/io")));
  values = look(sources);
  EXPECT_LT(values["clock  step_ms"], 1000);
  values = look(sources);
  ASSERT_TRUE(values.contains("nvml 0000:18:00.0 temperature_C")) << "it was asked";
  EXPECT_EQ(values["nvml 0000:18:00.0 temperature_C"], std::nullopt);
}

TEST_F(HostSourcesTest, ThatAreMissingAreNamed) {
  HostSources sources(
      posix_env(), {.root = folder_.path(), .disks = {folder_.path() + "/nowhere"}, .reads_log = false}, {});
  static_cast<void>(sources.look());
  static_cast<void>(sources.look());
  EXPECT_THAT(sources.missing(), Contains("nvml: there is no GPU of NVIDIA; the health of GPUs is not seen"));
  EXPECT_THAT(sources.missing(),
              Contains("infiniband: there is no device of it; the health of its links is not seen"));
  EXPECT_THAT(sources.missing(), Contains(HasSubstr("nowhere")));
  EXPECT_EQ(sources.missing().size(), 7U);
}

TEST(KernelLog, HasLinesWithoutPriorities) {
  EXPECT_THAT(lines_of_kernel_log("<6>[    0.000000] Linux\n<4>[    1.5] a <b>\nplain\n"),
              ElementsAre("[    0.000000] Linux", "[    1.5] a <b>", "plain"));
  const Result<std::vector<std::string>> log = kernel_log();
  if (log.ok()) {
    EXPECT_THAT(*log, Not(Contains(testing::StartsWith("<"))));
  } else {
    EXPECT_THAT(log.error().message, HasSubstr("dmesg_restrict"));
  }
}

}  // namespace
}  // namespace holdfast::test
