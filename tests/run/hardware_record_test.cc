// Tests what a run remembers of its hardware: by device, within a window, and through a file that may be anything.
#include "runtime/run/hardware_record.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "runtime/os/machine_facts.h"
#include "tests/support/forwarding_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr std::int64_t of_second_us = 1'000'000, begin_us = 1'790'000'000 * of_second_us;
constexpr std::int64_t minute_ms = 60'000;

HardwareFinding finding(std::uint64_t step, std::int64_t seconds, const char* what = "once") {
  return {.step = step, .time_us = begin_us + seconds * of_second_us, .what = what};
}

TEST(HardwareRecord, CountsByDeviceWithinTheWindow) {
  HardwareRecord record;
  record.add({.host = "b", .device = "cpu"}, finding(8, 0));
  record.add({.host = "a", .device = "GPU-1"}, finding(9, 10));
  record.add({.host = "b", .device = "cpu"}, finding(12, 50, "memory"));
  const auto recent = [&](const char* host, const char* device, std::int64_t seconds) {
    return record.recent({.host = host, .device = device}, begin_us + seconds * of_second_us, minute_ms);
  };
  EXPECT_EQ(recent("b", "cpu", 59).count, 2U);
  EXPECT_EQ(recent("b", "cpu", 59).since_us, begin_us);
  EXPECT_EQ(recent("b", "cpu", 60).count, 1U) << "the first one is a minute old";
  EXPECT_EQ(recent("b", "cpu", 60).since_us, begin_us + 50 * of_second_us);
  EXPECT_EQ(recent("b", "cpu", 110).count, 0U);
  EXPECT_EQ(recent("b", "cpu", -100).count, 2U) << "clocks may differ";
  EXPECT_EQ(recent("a", "GPU-1", 59).count, 1U);
  EXPECT_EQ(recent("a", "cpu", 59).count, 0U);
  EXPECT_EQ(record.recent({.host = "b", .device = "cpu"}, begin_us, 0).count, 0U);
}

TEST(HardwareRecord, KnowsTheHostThatComputesWrongAgainAndAgain) {
  HardwareRecord record;
  record.add({.host = "a", .device = "cpu"}, finding(8, 0, "memory"));
  record.add({.host = "b", .device = "cpu"}, finding(8, 0, "once"));
  record.add({.host = "b", .device = "GPU-1"}, finding(9, 10, "lasts"));
  const auto wrong = [&](const char* host, std::int64_t seconds) {
    return record.computes_wrong(host, "", begin_us + seconds * of_second_us, minute_ms);
  };
  EXPECT_FALSE(wrong("a", 20));
  EXPECT_TRUE(wrong("b", 69));
  EXPECT_FALSE(wrong("b", 70)) << "a minute later";
  EXPECT_FALSE(record.computes_wrong("b", "", begin_us + 20 * of_second_us, 0));
}

TEST(HardwareRecord, ANameThatIsGivenToAnotherMachineHasNoFindings) {
  HardwareRecord record;
  record.add({.host = "worker-0", .machine = "m1", .device = "cpu"}, finding(8, 0, "lasts"));
  record.add({.host = "worker-0", .machine = "m1", .device = "GPU-1"}, finding(9, 1));
  const auto recent = [&](const char* host, const char* machine, const char* device) {
    return record.recent({.host = host, .machine = machine, .device = device}, begin_us, minute_ms).count;
  };
  EXPECT_EQ(recent("worker-0", "m1", "cpu"), 1U);
  EXPECT_EQ(recent("worker-0", "m2", "cpu"), 0U);
  EXPECT_EQ(recent("worker-0", "", "cpu"), 1U) << "as of an older program";
  EXPECT_EQ(recent("worker-1", "m1", "cpu"), 0U) << "containers of one image may have one machine";
  EXPECT_EQ(recent("worker-1", "m2", "GPU-1"), 1U) << "a GPU is itself everywhere";
  EXPECT_TRUE(record.computes_wrong("worker-0", "m1", begin_us, minute_ms));
  EXPECT_FALSE(record.computes_wrong("worker-0", "m2", begin_us, minute_ms));
  record.add({.host = "worker-0", .machine = "m2", .device = "cpu"}, finding(12, 2));
  EXPECT_EQ(record.devices.size(), 3U);
  EXPECT_EQ(*HardwareRecord::from_text(record.text()), record);
}

TEST(MachineIdentity, IsThatOfTheFirmwareElseOfTheInstallation) {
  class Machine final : public ForwardingEnv {
   public:
    using ForwardingEnv::ForwardingEnv;
    std::map<std::string, std::string> files = {};
    Result<FileStatus> status(const std::string& path) override {
      return FileStatus{.exists = files.contains(path)};
    }
    Result<std::string> read_text(const std::string& path) override {
      if (!files.contains(path)) return fail(ExitCode::config, "{} cannot be read", path);
      return files.at(path);
    }
  } machine(posix_env());
  EXPECT_EQ(machine_identity(machine), "");
  machine.files["/etc/machine-id"] = "0123abcd\n";
  EXPECT_EQ(machine_identity(machine), "0123abcd");
  machine.files["/sys/class/dmi/id/product_uuid"] = "4c4c4544-0042\n";
  EXPECT_EQ(machine_identity(machine), "4c4c4544-0042");
}

TEST(HardwareRecord, KeepsTheNewestFindings) {
  HardwareRecord record;
  for (int i = 0; i < 70; ++i)
    record.add({.host = "a", .device = "cpu"}, finding(static_cast<std::uint64_t>(i), i));
  ASSERT_EQ(record.devices[0].findings.size(), HardwareRecord::findings_max);
  EXPECT_EQ(record.devices[0].findings.front().step, 6U);
  EXPECT_EQ(record.devices[0].findings.back().step, 69U);
  for (int i = 0; i < 1'100; ++i)
    record.add({.host = fmt::format("host-{}", i), .device = "cpu"}, finding(1, 100 + i));
  EXPECT_EQ(record.devices.size(), HardwareRecord::devices_max);
  EXPECT_EQ(record.recent({.host = "host-1099", .device = "cpu"}, begin_us, minute_ms).count, 1U);
  EXPECT_EQ(record.recent({.host = "a", .device = "cpu"}, begin_us, minute_ms).count, 0U);
}

TEST(HardwareRecord, AFindingThatTwoRanksKnowCountsOnce) {
  HardwareRecord one, other;
  one.add({.host = "a", .device = "cpu"}, finding(8, 0));
  one.add({.host = "b", .device = "cpu"}, finding(9, 1));
  other.add({.host = "a", .device = "cpu"}, finding(12, 5));
  other.add({.host = "a", .device = "cpu"}, finding(8, 0));
  HardwareRecord reversed = other;
  reversed.merge(one);
  one.merge(other);
  EXPECT_EQ(one, reversed);
  EXPECT_THAT(one.devices[0].findings, ElementsAre(finding(8, 0), finding(12, 5)));
}

TEST(HardwareRecord, ComesBackFromItsText) {
  HardwareRecord record;
  record.add({.host = "b", .device = "cpu"}, finding(8, 0, "lasts"));
  record.add({.host = "a", .device = "GPU-1"}, finding(9, 10));
  const Result<HardwareRecord> read = HardwareRecord::from_text(record.text());
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, record);
  EXPECT_TRUE(HardwareRecord::from_text("{}")->devices.empty());
  EXPECT_TRUE(HardwareRecord::from_text(R"({"devices":[{"host":"a","device":"cpu","findings":[]}]})")
                  ->devices.empty());
}

TEST(HardwareRecord, RefusesOtherTexts) {
  const auto problem = [](const char* text) {
    const Result<HardwareRecord> read = HardwareRecord::from_text(text);
    return read.ok() ? std::string() : read.error().message;
  };
  for (const char* text :
       {"", "[1]", "null", R"({"devices":7})", R"({"devices":[7]})", "{\"devices\":[{\"fin"})
    EXPECT_NE(problem(text), "") << text;
  for (const char* time : {"-1", "9223372036854775807", "1.5", "\"1\""}) {
    EXPECT_NE(problem(fmt::format(R"({{"devices":[{{"findings":[{{"time_us":{}}}]}}]}})", time).c_str()), "")
        << time;
  }
}

TEST(HardwareRecord, TellsALauncherWhichHostsGaveWrongNumbers) {
  HardwareRecord record;
  record.add({.host = "a", .device = "GPU-1"}, finding(8, 0));
  record.add({.host = "a", .device = "GPU-2"}, finding(12, 30));
  record.add({.host = "b", .device = "cpu"}, finding(9, -100));
  EXPECT_THAT(
      sentences_of_hosts(record, {"run"}, begin_us + 40 * of_second_us, minute_ms),
      ElementsAre(
          Pair("a",
               "the hardware of host a gave wrong numbers 2 times in the last 1m, the last time at step 12 "
               "on 2026-09-21 14:13:50 UTC; holdfast drain run a leaves the host")));
}

TEST(HardwareRecord, ADamagedFileIsToldAndBegunAnew) {
  const TemporaryDirectory directory;
  const RunPaths paths{directory.path()};
  HardwareFile file = read_hardware_record(posix_env(), paths);
  EXPECT_EQ(file.damage, "");
  EXPECT_EQ(file.text, HardwareRecord().text()) << "an empty record needs no file";

  HardwareRecord record;
  record.add({.host = "a", .device = "cpu"}, finding(8, 0));
  ASSERT_TRUE(posix_env().replace_text(paths.hardware(), record.text()).ok());
  file = read_hardware_record(posix_env(), paths);
  EXPECT_EQ(file.record, record);
  EXPECT_EQ(file.text, record.text());

  ASSERT_TRUE(posix_env().replace_text(paths.hardware(), "{\"devices\":[{").ok());
  file = read_hardware_record(posix_env(), paths);
  EXPECT_THAT(file.record.devices, IsEmpty());
  EXPECT_EQ(file.text, "");
  EXPECT_THAT(file.damage, HasSubstr("hardware.json is damaged (it is not such a record): what was found"));
}

}  // namespace
}  // namespace holdfast::test
