#include "runtime/health/host_sources.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <map>
#include <thread>

#include "runtime/health/health_rules.h"
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

TEST_F(HostSourcesTest, RanksOfTheRunAreRead) {
  const std::int64_t own = ::getpid();
  HostSources sources(posix_env(),
                      {.root = folder_.path(),
                       .disks = {},
                       .reads_log = false,
                       .ranks =
                           [own] {
                             return std::vector<HostRank>{{3, own}, {4, 0x7ffffff0}};
                           }},
                      {});
  auto values = look(sources);
  ASSERT_TRUE(values.contains("rank rank 3 memory_MB"));
  EXPECT_FALSE(values.contains("rank rank 4 memory_MB")) << "it has ended";
  const double before = *values["rank rank 3 memory_MB"];
  EXPECT_GT(before, 0.1);
  std::vector<char> taken(std::size_t{64} << 20, 'x');
  EXPECT_GE(*look(sources)["rank rank 3 memory_MB"], before + 60);
  EXPECT_EQ(taken.back(), 'x');
}

// Answers each question with the next of its texts, as an exporter does.
class Exporter {
 public:
  explicit Exporter(std::vector<std::string> answers) {
    Result<std::unique_ptr<os::Listener>> listener = posix_env().network().listen("127.0.0.1");
    EXPECT_TRUE(listener.ok());
    listener_ = std::move(listener).value();
    thread_ = std::thread([this, answers = std::move(answers)] {
      for (const std::string& answer : answers) {
        const Result<std::unique_ptr<os::Connection>> connection = listener_->accept(10'000);
        if (!connection.ok() || *connection == nullptr) return;
        std::string question;
        while (!question.ends_with("\r\n\r\n")) {
          std::array<std::byte, 1> letter{};
          if (!(*connection)->receive(letter, 10'000).ok()) return;
          question += static_cast<char>(letter[0]);
        }
        EXPECT_THAT(question, testing::StartsWith("GET /metrics HTTP/1.0\r\n"));
        EXPECT_TRUE((*connection)->send(std::as_bytes(std::span(answer)), 1'000).ok());
      }
    });
  }
  ~Exporter() { thread_.join(); }
  std::string address() const { return fmt::format("127.0.0.1:{}", listener_->port()); }

 private:
  std::unique_ptr<os::Listener> listener_;
  std::thread thread_;
};

std::string metrics(int celsius, int xid) {
  constexpr const char* labels =
      R"({gpu="0",UUID="GPU-5b4e07f6",pci_bus_id="00000000:3B:00.0",device="nvidia0",modelName="NVIDIA H200",Hostname="n7"})";
  std::string text = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n";
  text += "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n";
  text += fmt::format("DCGM_FI_DEV_GPU_TEMP{} {}\n", labels, celsius);
  text += fmt::format("DCGM_FI_DEV_POWER_USAGE{} 312.5\n", labels);
  text += fmt::format("DCGM_FI_DEV_MEMORY_TEMP{} 9223372036854775794\n", labels);
  text += fmt::format("DCGM_FI_DEV_PCIE_REPLAY_COUNTER{} 9223372036854775794\n", labels);
  text += fmt::format("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{} 2147483634\n", labels);
  text += fmt::format("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{} 0.437\n", labels);
  return text + fmt::format("DCGM_FI_DEV_XID_ERRORS{} {}\n", labels, xid);
}

TEST_F(HostSourcesTest, DcgmIsAskedForWhatNvmlDoesNotSay) {
  file("/proc/driver/nvidia/gpus/0000:3b:00.0/information", "Model: NVIDIA H200\n");
  const Exporter exporter(
      {metrics(61, 13), metrics(62, 79), "HTTP/1.0 503 Service Unavailable\r\n\r\n", metrics(64, 79)});
  HostSources sources(posix_env(),
                      {.root = folder_.path(),
                       .disks = {},
                       .reads_log = false,
                       .exporter = *exporter_address(exporter.address())},
                      [](const std::string&) {
                        return std::vector<std::pair<std::string, double>>{{"temperature_C", 60}};
                      });
  auto values = look(sources);
  EXPECT_EQ(values["nvml 0000:3b:00.0 temperature_C"], 60);
  EXPECT_FALSE(values.contains("dcgm 0000:3b:00.0 temperature_C")) << "NVML has said it";
  EXPECT_EQ(values["dcgm 0000:3b:00.0 power_mW"], 312'500);
  EXPECT_EQ(values["dcgm 0000:3b:00.0 tensor_active"], 0.437);
  EXPECT_FALSE(values.contains("dcgm 0000:3b:00.0 pcie_replays")) << "that is a blank value";
  EXPECT_FALSE(values.contains("dcgm 0000:3b:00.0 nvlink_replays")) << "that is a blank value";
  EXPECT_THAT(sources.missing(), Not(Contains(HasSubstr("dcgm"))));
  const auto lines = [&] {
    std::vector<std::string> texts;
    for (const HealthReading& reading : sources.look())
      if (reading.text.has_value()) texts.push_back(*reading.text);
    return texts;
  };
  const std::vector<std::string> changed = lines();
  ASSERT_THAT(changed, ElementsAre("NVRM: Xid (PCI:0000:3b:00): 79, as DCGM says"));
  EXPECT_EQ(parse_xid(changed[0])->code, 79);
  EXPECT_THAT(lines(), testing::IsEmpty()) << "it does not answer";
  EXPECT_THAT(lines(), testing::IsEmpty()) << "the same Xid";
}

TEST_F(HostSourcesTest, AnExporterThatDoesNotAnswerIsNamed) {
  const Exporter exporter({"hello"});
  HostSources sources(posix_env(),
                      {.root = folder_.path(),
                       .disks = {},
                       .reads_log = false,
                       .exporter = *exporter_address(exporter.address())},
                      {});
  static_cast<void>(sources.look());
  EXPECT_THAT(sources.missing(),
              Contains(testing::AllOf(HasSubstr("dcgm: "),
                                      HasSubstr("answers 'hello' when it is asked for /metrics"))));
}

TEST(ExporterAddress, IsNumericAndHasAPort) {
  EXPECT_FALSE(exporter_address("")->has_value());
  EXPECT_EQ((*exporter_address("[fe80::1]:9400"))->host, "fe80::1");
  EXPECT_EQ((*exporter_address("10.0.0.7:9400"))->port, 9400);
  for (const char* wrong :
       {"localhost:9400", "10.0.0.7", "10.0.0.7:", ":9400", "10.0.0.7:99999", "10.0.0.7:94x", "10.0.0.7:0"}) {
    const auto address = exporter_address(wrong);
    ASSERT_FALSE(address.ok()) << wrong;
    EXPECT_THAT(address.error().message, HasSubstr("expected a numeric address and a port"));
  }
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
