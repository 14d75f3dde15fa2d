#include "runtime/health/health_judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <map>
#include <random>
#include <set>

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t second = 1000, minute = 60 * second, hour = 60 * minute;
constexpr const char* gpu = "0000:18:00.0";

// What a judge says of readings that a test makes one after the other.
class HealthJudgeTest : public testing::Test {
 protected:
  void read(const std::string& source, const std::string& part, const std::string& name,
            std::optional<double> value) {
    take({.time_ms = now_ms_, .source = source, .part = part, .name = name, .value = value});
  }
  void log(const std::string& line) {
    take({.time_ms = now_ms_, .source = "kmsg", .name = "line", .text = line});
  }
  void wait(std::int64_t ms) { now_ms_ += ms; }
  // Reads `value(n)` for n = 0, 1, ... every `interval_ms`, `count` times.
  template <typename Value>
  void read_often(const std::string& source, const std::string& name, std::int64_t interval_ms, int count,
                  const Value& value) {
    for (int n = 0; n < count; ++n, wait(interval_ms)) read(source, gpu, name, value(n));
  }
  std::vector<std::string> found() const {
    std::vector<std::string> all;
    for (const HealthFinding& finding : findings_) all.push_back(finding.rule);
    return all;
  }

  HealthJudge judge_;
  std::vector<HealthFinding> findings_;
  std::int64_t now_ms_ = 1'000'000'000'000;

 private:
  void take(const HealthReading& reading) {
    for (HealthFinding& finding : judge_.take(reading)) findings_.push_back(std::move(finding));
  }
};

TEST(HealthRules, AreAllDifferentAndMakeSense) {
  std::set<std::string_view> names;
  for (const HealthRule& rule : health_rules()) {
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
    EXPECT_FALSE(rule.says.empty() || rule.origin.empty()) << rule.name;
    EXPECT_GE(rule.window_s, 0) << rule.name;
    const bool counts = rule.test == HealthTest::rises || rule.test == HealthTest::accelerates ||
                        rule.test == HealthTest::often || rule.test == HealthTest::flaps ||
                        rule.test == HealthTest::silent;
    if (counts) {
      EXPECT_GT(rule.window_s, 0) << rule.name << " has no time to count in";
    }
    EXPECT_EQ(rule.source == "kmsg", rule.test == HealthTest::line || rule.test == HealthTest::xid)
        << rule.name;
  }
}

TEST_F(HealthJudgeTest, AMemoryThatLeaksIsToldBeforeItIsUsedUp) {
  // Down from 40 % by half a percent a minute, with what comes and goes beside it.
  read_often("memory", "available_percent", 15 * second, 280,
             [](int n) { return 40 - 0.125 * n + (n % 7 == 0 ? 1.0 : 0.0); });
  ASSERT_THAT(found(), ElementsAre("memory-leak"));
  EXPECT_LE(findings_[0].value, 1200);
  EXPECT_GE(findings_[0].value, 900) << "as soon as the line says so";
  EXPECT_EQ(findings_[0].action, HealthAction::watch);
}

// As of a run that loads its data: a fall that is over is no leak, and neither is a moment without memory.
TEST_F(HealthJudgeTest, AMemoryThatIsTakenAtOnceDoesNotLeak) {
  read_often("memory", "available_percent", 15 * second, 400, [](int n) {
    if (n < 130) return 80.0;
    return n % 50 == 0 ? 2.0 : std::max(12.0, 80.0 - (n - 130) * 4);
  });
  EXPECT_THAT(found(), IsEmpty());
}

// Another look says the same thing about the same: one episode.
TEST_F(HealthJudgeTest, ALevelCountsWhenItLasts) {
  const auto hot = [](int n) { return n < 3 ? 79.0 : 84.0; };
  read_often("nvml", "temperature_C", 15 * second, 7, hot);
  EXPECT_THAT(found(), IsEmpty()) << "84 C for 45 s";
  read_often("nvml", "temperature_C", 15 * second, 20, [](int) { return 84.0; });
  EXPECT_THAT(found(), ElementsAre("gpu-hot"));
  EXPECT_EQ(findings_[0].action, HealthAction::watch);
  EXPECT_EQ(findings_[0].sentence, "0000:18:00.0: the GPU is hot: 84 C");
  wait(10 * minute);
  read_often("nvml", "temperature_C", 15 * second, 4, [](int) { return 60.0; });
  read_often("nvml", "temperature_C", 15 * second, 6, [](int) { return 85.0; });
  EXPECT_THAT(found(), ElementsAre("gpu-hot", "gpu-hot")) << "another episode";
}

TEST_F(HealthJudgeTest, ALevelThatDropsOnTheWayBeginsAnew) {
  read_often("nvml", "temperature_C", 15 * second, 40, [](int n) { return n % 4 == 3 ? 79.0 : 90.0; });
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(HealthJudgeTest, WhatTheDriverWants) {
  for (const double action : {0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 0.0}) {
    read("nvml", gpu, "recovery_action", action);
    wait(15 * second);
  }
  EXPECT_THAT(found(), ElementsAre("gpu-reset-wanted", "gpu-reboot-wanted", "gpu-drain-wanted"));
  EXPECT_EQ(findings_[1].action, HealthAction::reboot);
}

// Only what a counter grows by counts: what happened before it was first read is history.
TEST_F(HealthJudgeTest, ACounterCountsWhatItGrowsBy) {
  read_often("nvml", "ecc_uncorrected", minute, 100, [](int) { return 7.0; });
  EXPECT_THAT(found(), IsEmpty());
  read("nvml", gpu, "ecc_uncorrected", 8);
  EXPECT_THAT(found(), ElementsAre("gpu-memory-wrong"));
  wait(minute);
  read("nvml", gpu, "ecc_uncorrected", 0);  // the driver was loaded anew
  read("nvml", gpu, "ecc_uncorrected", 0);
  EXPECT_THAT(found(), ElementsAre("gpu-memory-wrong"));
}

TEST_F(HealthJudgeTest, ACounterThatGrowsSlowlyIsNoRate) {
  read_often("infiniband", "symbol_error", 30 * second, 2000, [](int n) { return n / 2.0; });  // 60 an hour
  EXPECT_THAT(found(), IsEmpty());
  read_often("infiniband", "symbol_error", 30 * second, 240,
             [](int n) { return 1000.0 + 2 * n; });  // 240 an hour
  EXPECT_THAT(found(), ElementsAre("infiniband-symbols"));
}

TEST_F(HealthJudgeTest, CorrectedErrorsThatGrowFasterAreASign) {
  read_often("nvml", "ecc_corrected", 15 * second, 400, [](int n) { return 0.5 * n; });  // 20 in 10 minutes
  EXPECT_THAT(found(), IsEmpty());
  read_often("nvml", "ecc_corrected", 15 * second, 60, [](int n) { return 200.0 + 4.0 * n; });
  EXPECT_THAT(found(), ElementsAre("gpu-memory-worse"));
}

TEST_F(HealthJudgeTest, AGpuThatIsSlowedNowAndThenIsFine) {
  read_often("nvml", "is_slowed", 30 * second, 200,
             [](int n) { return n % 5 == 0 ? 1.0 : 0.0; });  // 4 in 10 minutes
  EXPECT_THAT(found(), IsEmpty());
  read_often("nvml", "is_slowed", 30 * second, 40, [](int n) { return n % 2 == 0 ? 1.0 : 0.0; });
  EXPECT_THAT(found(), ElementsAre("gpu-slowed"));
}

TEST_F(HealthJudgeTest, ALinkFlapsWhenItIsDownForLong) {
  const auto down = [&](std::int64_t ms) {
    read("net", "eth0", "is_up", 1);
    wait(minute);
    read("net", "eth0", "is_up", 0);
    wait(ms);
    read("net", "eth0", "is_up", 1);
    wait(10 * minute);
  };
  for (int i = 0; i < 5; ++i) down(10 * second);
  EXPECT_THAT(found(), IsEmpty());
  for (int i = 0; i < 3; ++i) down(30 * second);
  EXPECT_THAT(found(), ElementsAre("network-flaps"));
}

TEST_F(HealthJudgeTest, ALinkThatWasNeverUpIsNotDown) {
  for (int i = 0; i < 100; ++i, wait(15 * second)) {
    read("net", "eth1", "is_up", 0);
    read("net", "eth0", "is_up", i < 50 ? 1 : 0);
  }
  ASSERT_THAT(found(), ElementsAre("network-down"));
  EXPECT_EQ(findings_[0].part, "eth0");
}

TEST_F(HealthJudgeTest, SilenceOfASensorIsASign) {
  for (int i = 0; i < 40; ++i, wait(15 * second)) {
    read("nvml", gpu, "temperature_C", i < 20 ? std::optional(60.0) : std::nullopt);
    read("memory", "", "available_percent", 50);
  }
  ASSERT_THAT(found(), ElementsAre("gpu-silent"));
  EXPECT_EQ(findings_[0].action, HealthAction::drain);
}

// The judge takes what DCGM says of a GPU as what NVML says; that its exporter is not there for a while is no sign of the GPU.
TEST_F(HealthJudgeTest, DcgmStandsForNvmlButItsSilenceSaysNothing) {
  for (int i = 0; i < 40; ++i, wait(15 * second)) {
    if (i < 20) read("dcgm", gpu, "temperature_C", 60.0);
    if (i < 20) read("dcgm", gpu, "nvlink_recoveries", i < 10 ? 3 : 4);
    read("memory", "", "available_percent", 50);
  }
  EXPECT_THAT(found(), ElementsAre("gpu-links-retrained"));
}

// A rank that takes 3 MB more every 4 s does so for ever; one that fills a cache comes to an end.
TEST_F(HealthJudgeTest, ARankWhoseMemoryGrowsAndGrowsHasALeak) {
  for (int i = 0; i < 900; ++i, wait(4 * second)) {
    read("rank", "rank 1", "memory_MB", 4000 + std::min(600, i) * 20.0);
    read("rank", "rank 2", "memory_MB", 4000 + i * 2.0);
    if (i == 440) {
      EXPECT_THAT(found(), IsEmpty()) << "it has not grown for half an hour";
    }
    if (i < 600) continue;
    read("rank", "rank 3", "memory_MB", 4000 + (i < 750 ? 0 : 5000));
  }
  ASSERT_THAT(found(), ElementsAre("rank-memory-grows"));
  EXPECT_EQ(findings_[0].part, "rank 1");
  EXPECT_THAT(findings_[0].sentence, HasSubstr("rank 1: the memory of the rank grows and grows: by 9"));
}

// A host that was asleep, or whose recorder was, has no silent sensor.
TEST_F(HealthJudgeTest, TimeInWhichNobodyLooksIsNoSilence) {
  for (int i = 0; i < 20; ++i, wait(i % 5 == 4 ? hour : 15 * second)) {
    read("memory", "", "available_percent", 50);
    read("nvml", gpu, "temperature_C", 60);
  }
  EXPECT_THAT(found(), IsEmpty());
}

TEST(Xids, ComeInTwoForms) {
  const auto pid = parse_xid(
      "[ 1234.5] NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the "
      "bus.");
  ASSERT_TRUE(pid.has_value());
  EXPECT_EQ(pid->gpu, "0000:18:00");
  EXPECT_EQ(pid->code, 79);
  EXPECT_FALSE(parse_xid("NVRM: loading NVIDIA UNIX x86_64 Kernel Module").has_value());
  EXPECT_FALSE(parse_xid("NVRM: Xid (PCI:0000:18:00): x").has_value());
  EXPECT_FALSE(parse_xid("NVRM: Xid (PCI:0000").has_value());
}

TEST(Xids, AskForWhatNvidiaAdvises) {
  EXPECT_EQ(xid_catalog().size(), 172U);
  EXPECT_EQ(action_of_xid(79, ""), HealthAction::reboot);
  EXPECT_EQ(action_of_xid(48, ""), HealthAction::drain);
  EXPECT_EQ(action_of_xid(95, ""), HealthAction::leave_out);
  EXPECT_EQ(action_of_xid(94, ""), HealthAction::watch);
  EXPECT_EQ(action_of_xid(63, ""), HealthAction::ignore);
  EXPECT_EQ(action_of_xid(9999, ""), HealthAction::watch);
  EXPECT_EQ(action_of_xid(145, "RLW_REMAP Nonfatal XC0 i0 Link 05"), HealthAction::watch);
  EXPECT_EQ(action_of_xid(145, "RLW_REMAP Fatal XC0 i0 Link 05"), HealthAction::drain);
  EXPECT_EQ(action_of_xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
            HealthAction::leave_out);
  EXPECT_EQ(action_of_xid(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
            HealthAction::ignore);
  EXPECT_EQ(action_of_xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
            HealthAction::reboot);
}

TEST(ChangedRules, HaveOtherActionsAndThresholds) {
  const std::vector<std::string> changes = {"gpu-hot=drain:87.5", "network-carrier=ignore", "xid=watch"};
  const Result<std::vector<HealthRule>> rules = changed_rules(changes);
  ASSERT_TRUE(rules.ok()) << rules.error().message;
  ASSERT_EQ(rules->size(), health_rules().size());
  HealthJudge judge(*rules);
  std::vector<HealthFinding> findings;
  for (std::int64_t i = 0; i < 40; ++i) {
    const std::vector<HealthReading> readings = {{.time_ms = i * 15 * second,
                                                  .source = "nvml",
                                                  .part = "0000:18:00.0",
                                                  .name = "temperature_C",
                                                  .value = i < 20 ? 85 : 88},
                                                 {.time_ms = i * 15 * second,
                                                  .source = "kmsg",
                                                  .name = "line",
                                                  .text = "NVRM: Xid (PCI:0000:18:00): 79, x"}};
    for (const HealthReading& reading : readings)
      std::ranges::move(judge.take(reading), std::back_inserter(findings));
  }
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].action, HealthAction::watch) << "Xid 79 asks for a reboot";
  EXPECT_EQ(findings[1].rule, "gpu-hot");
  EXPECT_EQ(findings[1].action, HealthAction::drain);
  EXPECT_EQ(findings[1].value, 88);
}

TEST(ChangedRules, ThatCannotBeMeantGetASentence) {
  const std::map<std::vector<std::string>, std::string> cases = {
      {{"gpu-hat=drain"}, "there is no rule 'gpu-hat' (did you mean 'gpu-hot'?)"},
      {{"gpu-hot"}, "expected NAME=ACTION or NAME=ACTION:THRESHOLD"},
      {{"gpu-hot=kill"},
       "no action is called 'kill'; expected one of ignore, watch, drain, leave_out, reboot"},
      {{"gpu-hot=drain:x"}, "'x' is no threshold; expected a number above 0"},
      {{"gpu-hot=drain:-3"}, "expected a number above 0"},
      {{"gpu-hot=drain:nan"}, "expected a number above 0"},
      {{"gpu-power-falls=drain:1.5"}, "expected a number below 1"},
      {{"gpu-silent=drain:9"}, "gpu-silent compares with no threshold; leave out ':9'"},
      {{"gpu-hot=drain:90", "gpu-hot=watch:80"}, "they contradict each other"}};
  for (const auto& [changes, sentence] : cases) {
    const Result<std::vector<HealthRule>> rules = changed_rules(changes);
    ASSERT_FALSE(rules.ok()) << changes[0];
    EXPECT_EQ(rules.error().code, ExitCode::config);
    EXPECT_THAT(rules.error().message, HasSubstr(sentence));
  }
}

std::string xid(const std::string& of, int code) {
  return fmt::format("NVRM: Xid (PCI:{}): {}, pid=1234, name=holdfast, Ch 00000008", of, code);
}

// A fault of a program is on all GPUs, or once; the same on one chip again is one of the chip.
TEST_F(HealthJudgeTest, PagesThatAProgramMissesAreAProgramsMistake) {
  for (const char* each : {"0000:18:00", "0000:2a:00", "0000:18:00"}) {
    log(xid(each, 31));
    wait(hour);
  }
  for (const HealthFinding& finding : findings_)
    EXPECT_EQ(finding.action, HealthAction::watch) << finding.sentence;
  EXPECT_EQ(findings_.size(), 3U);
}

TEST_F(HealthJudgeTest, AGpuThatMissesPagesAloneIsSick) {
  for (int i = 0; i < 2; ++i, wait(hour)) log(xid("0000:18:00", 31));
  ASSERT_EQ(findings_.size(), 2U);
  EXPECT_EQ(findings_[0].action, HealthAction::watch);
  EXPECT_EQ(findings_[1].action, HealthAction::drain);
}

TEST_F(HealthJudgeTest, TheFifthTimeInADayAResetDoesNotHelp) {
  for (int i = 0; i < 5; ++i, wait(4 * hour)) {
    for (int line = 0; line < 10; ++line, wait(second)) log(xid("0000:18:00", 94));
  }
  ASSERT_EQ(findings_.size(), 5U) << "ten lines are one burst";
  EXPECT_EQ(findings_[3].action, HealthAction::watch);
  EXPECT_EQ(findings_[4].action, HealthAction::leave_out);
  EXPECT_THAT(findings_[4].sentence, HasSubstr("again and again"));
}

TEST_F(HealthJudgeTest, LinesOfTheKernelAreFound) {
  log("EXT4-fs (sda1): mounted filesystem r/w with ordered data mode");
  log("mce: [Hardware Error]: Machine check events logged");
  EXPECT_THAT(found(), IsEmpty());
  log("EXT4-fs (sda1): Remounting filesystem read-only");
  log("watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python:1234]");
  log("pcieport 0000:16:01.0: NVRM: The NVIDIA GPU 0000:18:00.0 has fallen off the bus");
  EXPECT_THAT(found(), ElementsAre("disk-errors", "lockup", "gpu-off-the-bus"));
}

// Values that hosts had over weeks, as far as they are published: ECC corrects a few bits, a port drops its link at a boot,
// clocks are lowered for a second under full load, a file system fills and is emptied.
TEST(HealthyHosts, AreLeftAlone) {
  constexpr int hours = 300;
  HealthJudge judge;
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> chance(0, 1);
  std::normal_distribution<double> noise(0, 1);
  double corrected = 12, errors = 3, replays = 0, load = 0.5, memory = 60, symbols = 0;
  std::vector<std::string> alarms;
  std::int64_t time_ms = 1'000'000'000'000;
  for (std::int64_t look = 0; look < hours * 240; ++look, time_ms += 15 * second) {
    const auto read = [&](const char* source, const char* part, const char* name, double value) {
      for (const HealthFinding& finding :
           judge.take({.time_ms = time_ms, .source = source, .part = part, .name = name, .value = value})) {
        if (finding.action >= HealthAction::drain) alarms.push_back(finding.sentence);
      }
    };
    load = std::clamp(load + 0.05 * noise(random), 0.0, 1.0);
    memory = std::clamp(memory + noise(random), 8.0, 90.0);
    if (chance(random) < 0.002) corrected += 1 + static_cast<int>(3 * chance(random));
    if (chance(random) < 0.001) errors += static_cast<int>(40 * chance(random));
    if (chance(random) < 0.001) replays += 1;
    if (chance(random) < 0.01) symbols += 1;
    read("nvml", gpu, "temperature_C", 45 + 30 * load + noise(random));
    read("nvml", gpu, "ecc_corrected", corrected);
    read("nvml", gpu, "ecc_uncorrected", 0);
    read("nvml", gpu, "is_slowed", chance(random) < 0.01 * load ? 1 : 0);
    read("nvml", gpu, "pcie_replays", replays);
    read("net", "eth0", "is_up", 1);
    read("net", "eth0", "errors", errors);
    read("net", "eth0", "carrier_changes", look < 40 ? 1 : 2);
    read("infiniband", "mlx5_0/1", "symbol_error", symbols);
    read("memory", "", "available_percent", memory);
    read("pressure", "", "io_full_percent", chance(random) < 0.01 ? 70 : 2);
  }
  EXPECT_THAT(alarms, IsEmpty());
}

}  // namespace
}  // namespace holdfast::test
