#include "runtime/os/fault_point.h"
#include "runtime/core/record.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "runtime/os/processes.h"
#include "tests/support/forwarding_env.h"
#include "tests/support/leave.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

std::unique_ptr<FaultPoints> faults_of(std::string_view specification, int rank = 0) {
  auto parsed = FaultPoints::parse(specification, rank, posix_env());
  EXPECT_TRUE(parsed.ok()) << parsed.error().message;
  return std::move(parsed).value();
}

std::string error_of(std::string_view specification) {
  const auto parsed = FaultPoints::parse(specification, 0, posix_env());
  EXPECT_FALSE(parsed.ok()) << specification;
  return parsed.ok() ? "" : parsed.error().message;
}

TEST(FaultPoints, UnarmedDoesNothing) {
  FaultPoints none;
  EXPECT_FALSE(none.armed());
  HF_FAULT_POINT(none, "step.begin");
  EXPECT_FALSE(faults_of("")->armed());
}

TEST(FaultPoints, NamesAreSortedAndUnique) {
  const auto& names = FaultPoints::names();
  EXPECT_TRUE(std::ranges::is_sorted(names));
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  for (const std::string_view name : names) {
    const std::string_view action = name == sample_point ? "nan" : "kill";
    EXPECT_TRUE(faults_of(fmt::format("{}={}", name, action))->armed());
  }
}

TEST(FaultPoints, WhatHappensIsToldBefore) {
  const TemporaryDirectory directory;
  const std::string log = directory / "points";
  ASSERT_EQ(::setenv("HOLDFAST_FAULTS_LOG", log.c_str(), 1), 0);
  const std::int64_t before_us = posix_env().wall_time_us();
  const pid_t child = fork();
  if (child == 0) {
    const auto faults = faults_of("step.begin@2=kill,step.end@9=kill");
    for (int step = 0; step < 5; ++step) HF_FAULT_POINT(*faults, "step.begin");
    test::leave(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(::unsetenv("HOLDFAST_FAULTS_LOG"), 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  const std::string line = posix_env().read_text(log).value();
  const FaultPointRecord reported = record_from_text<FaultPointRecord>(line).value();
  EXPECT_GE(reported.time_us, before_us);
  EXPECT_EQ(line, fmt::format(R"({{"event":"fault_point","time_us":{},"point":"step.begin","hit":2,)"
                              R"("action":"kill","host":"{}","process":{},"changed":null}})"
                              "\n",
                              reported.time_us, posix_env().host_name(), child));

  faults_of("step.begin=sleep:1")->hit("step.begin");
  EXPECT_EQ(posix_env().read_text(log).value(), line) << "nobody wants to know";
}

TEST(FaultPoints, AnErrorOfStorageIsReturnedForAsManyPassesAsItSays) {
  const auto pass = [](FaultPoints& faults, std::string_view name) -> Result<void> {
    HF_FAILING_FAULT_POINT(faults, name);
    return {};
  };
  const auto failures = [&](std::string_view specification, std::string_view name) {
    const auto faults = faults_of(specification);
    std::string text;
    for (int i = 0; i < 6; ++i) text += pass(*faults, name).ok() ? '.' : 'x';
    return text;
  };
  EXPECT_EQ(failures("", "data.read"), "......");
  EXPECT_EQ(failures("data.read@3=error", "data.read"), "..x...");
  EXPECT_EQ(failures("data.read@2=error:EIO:3", "data.read"), ".xxx..");
  EXPECT_EQ(failures("save.before_shard@5=error:EIO:always", "save.before_shard"), "....xx");
  EXPECT_EQ(failures("data.read:1=error:EIO:always", "data.read"), "......") << "of another rank";
  const Error read = pass(*faults_of("data.read=error"), "data.read").error();
  EXPECT_EQ(read.message, "cannot read at the fault point data.read: Input/output error");
  EXPECT_EQ(read.code, ExitCode::data);
  EXPECT_EQ(read.reach, Reach::minute);
  const Error written = pass(*faults_of("save.before_rename=error:EACCES"), "save.before_rename").error();
  EXPECT_EQ(written.code, ExitCode::checkpoint);
  EXPECT_EQ(written.reach, Reach::host);
}

TEST(FaultPoints, BreakTheDeviceThatIsConnected) {
  const auto faults = faults_of("step.before_reduce@2=gpu_trap,step.end=gpu_endless");
  EXPECT_TRUE(faults->breaks_device());
  std::vector<DeviceFault> broken;
  faults->connect_device([&](DeviceFault fault) { broken.push_back(fault); });
  faults->hit("step.before_reduce");
  EXPECT_THAT(broken, testing::IsEmpty());
  faults->hit("step.before_reduce");
  faults->hit("step.end");
  EXPECT_THAT(broken, testing::ElementsAre(DeviceFault::trap, DeviceFault::endless));
  EXPECT_FALSE(faults_of("step.end=kill")->breaks_device());
  EXPECT_FALSE(faults_of("step.end:1=gpu_trap", 0)->breaks_device());
  EXPECT_THAT(error_of("save.before_manifest=gpu_illegal_address"),
              HasSubstr("'gpu_illegal_address' belongs to a point of a step"));
}

TEST(FaultPoints, WrongProductsAreOfTheDeviceThatIsConnected) {
  const auto faults = faults_of("step.begin@2=wrong_product_always");
  EXPECT_TRUE(faults->makes_wrong_products());
  EXPECT_FALSE(faults->breaks_device());
  EXPECT_FALSE(faults_of("step.begin=gpu_trap")->makes_wrong_products());
  std::vector<DeviceFault> broken;
  faults->connect_device([&](DeviceFault fault) { broken.push_back(fault); });
  faults->hit("step.begin");
  faults->hit("step.begin");
  EXPECT_THAT(broken, testing::ElementsAre(DeviceFault::wrong_products));
}

TEST(FaultPoints, ChangeTheMemoryThatIsConnectedAndLogIt) {
  const TemporaryDirectory directory;
  const std::string log = directory / "points";
  ASSERT_EQ(::setenv("HOLDFAST_FAULTS_LOG", log.c_str(), 1), 0);
  const auto faults = faults_of("step.begin@2=flip:moment1:30:7,step.before_update=scale_rate:0.5");
  std::vector<Corruption> made;
  std::vector<double> factors;
  faults->connect_memory([&](const Corruption& corruption) {
    made.push_back(corruption);
    return CorruptedNumber{
        .tensor = "t", .element = 7, .bit = 30, .old_value = "1", .new_value = "nan", .numbers = 1};
  });
  faults->connect_rate([&](double factor) { factors.push_back(factor); });
  for (int step = 0; step < 3; ++step) {
    faults->hit("step.begin");
    faults->hit("step.before_update");
  }
  ASSERT_EQ(::unsetenv("HOLDFAST_FAULTS_LOG"), 0);
  ASSERT_EQ(made.size(), 1U);
  EXPECT_EQ(made.front().memory, NumberMemory::moment1);
  EXPECT_EQ(made.front().bit, 30U);
  EXPECT_EQ(made.front().element, 7U);
  EXPECT_THAT(factors, testing::ElementsAre(0.5));
  const std::string lines = posix_env().read_text(log).value();
  EXPECT_THAT(lines, HasSubstr(R"("point":"step.begin","hit":2,"action":"flip:moment1:30:7")"));
  EXPECT_THAT(
      lines,
      HasSubstr(
          R"("changed":{"tensor":"t","element":7,"bit":30,"old_value":"1","new_value":"nan","numbers":1})"));
  EXPECT_THAT(lines, HasSubstr(R"("action":"scale_rate:0.5")"));
}

// Returns the number from which the bit and element of an action at this hit are drawn.
std::uint64_t draw_of(std::string_view point_and_hit, int rank) {
  const auto faults = faults_of(fmt::format("{}=flip:weights", point_and_hit), rank);
  std::uint64_t draw = 0;
  faults->connect_memory([&](const Corruption& corruption) {
    draw = corruption.draw;
    return CorruptedNumber{};
  });
  for (int hit = 0; hit < 3; ++hit) faults->hit("step.begin");
  return draw;
}

TEST(FaultPoints, DrawsFollowFromHitAndRank) {
  EXPECT_EQ(draw_of("step.begin@2", 1), draw_of("step.begin@2", 1));
  EXPECT_NE(draw_of("step.begin@2", 1), draw_of("step.begin@2", 0));
  EXPECT_NE(draw_of("step.begin@2", 1), draw_of("step.begin@3", 1));
}

TEST(FaultPoints, SamplesAreSpoiledByPositionAtEveryPass) {
  const auto faults = faults_of("data.sample@9=nan,data.sample@12=scramble,data.sample@12:1=nan");
  EXPECT_TRUE(faults->spoils_samples());
  EXPECT_FALSE(faults_of("step.begin=kill")->spoils_samples());
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_TRUE(faults->spoiled_samples(0, 8).empty());
    EXPECT_TRUE(faults->spoiled_samples(12, 8).empty());
    const auto spoiled = faults->spoiled_samples(8, 4);
    ASSERT_EQ(spoiled.size(), 2U);
    EXPECT_EQ(spoiled[0].index, 0U);
    EXPECT_EQ(spoiled[0].fault, SampleFault::nan);
    EXPECT_EQ(spoiled[1].index, 3U);
    EXPECT_EQ(spoiled[1].fault, SampleFault::scramble);
  }
}

TEST(FaultPoints, OtherRanksAreNotArmed) {
  EXPECT_FALSE(faults_of("step.begin:1=kill", 0)->armed());
  EXPECT_TRUE(faults_of("step.begin:1=kill", 1)->armed());
  EXPECT_TRUE(faults_of("step.begin@3:1=kill,step.end=stop", 0)->armed());
}

TEST(FaultPoints, ErrorsNamePositionAndReason) {
  EXPECT_THAT(error_of("step.begin"), HasSubstr("there is no '='"));
  EXPECT_THAT(error_of("step.begim=kill"), HasSubstr("did you mean 'step.begin'?"));
  EXPECT_THAT(error_of("zzz=kill"), HasSubstr("save.before_rename"));
  EXPECT_THAT(error_of("step.begin=kill,step.end=die"), HasSubstr("character 17"));
  EXPECT_THAT(error_of("step.begin=kill,step.end=die"), HasSubstr("'die' is not an action"));
  EXPECT_THAT(error_of("step.begin=kill,"), HasSubstr("character 17"));
  EXPECT_THAT(error_of("step.begin@0=kill"), HasSubstr("'0' is not a hit count"));
  EXPECT_THAT(error_of("step.begin@x=kill"), HasSubstr("'x' is not a hit count"));
  EXPECT_THAT(error_of("step.begin:-1=kill"), HasSubstr("'-1' is not a rank"));
  EXPECT_THAT(error_of("step.begin=sleep"), HasSubstr("needs a number"));
  EXPECT_THAT(error_of("step.begin=sleep:1s"), HasSubstr("'1s' is not a number"));
  EXPECT_THAT(error_of("step.begin=sleep:9000000000000000000"), HasSubstr("is not a number"));
  EXPECT_THAT(error_of("step.begin=kill:1"), HasSubstr("takes no number"));
}

// Notes how long it was asked to sleep, and does not.
class SleeplessEnv final : public ForwardingEnv {
 public:
  SleeplessEnv() : ForwardingEnv(posix_env()) {}
  void sleep_us(std::int64_t microseconds) override { slept_us += microseconds; }
  std::int64_t slept_us = 0;
};

TEST(FaultPoints, SleepHappensOnlyAtItsHit) {
  SleeplessEnv env;
  const auto faults = FaultPoints::parse("step.end@2=sleep:500", 0, env).value();
  HF_FAULT_POINT(*faults, "step.end");
  HF_FAULT_POINT(*faults, "step.begin");  // another name does not count
  EXPECT_EQ(env.slept_us, 0);
  HF_FAULT_POINT(*faults, "step.end");
  EXPECT_EQ(env.slept_us, 500'000);
  HF_FAULT_POINT(*faults, "step.end");
  EXPECT_EQ(env.slept_us, 500'000);
}

TEST(FaultPointsDeathTest, ALivelockDoesNotEnd) {
  EXPECT_EXIT(
      {
        alarm(1);
        const auto faults = faults_of("step.end=spin");
        HF_FAULT_POINT(*faults, "step.end");
      },
      testing::KilledBySignal(SIGALRM), "");
}

TEST(FaultPointsDeathTest, UnlistedNameIsABug) {
  const auto faults = faults_of("step.end=kill");
  EXPECT_DEATH(faults->hit("no.such_point"), "fault point 'no.such_point' is not in");
}

TEST(FaultPointsDeathTest, ActionsEndTheProcess) {
  const auto passes_twice = [](std::string_view specification) {
    const auto faults = faults_of(specification);
    HF_FAULT_POINT(*faults, "step.end");
    HF_FAULT_POINT(*faults, "step.end");
    test::leave(0);
  };
  EXPECT_EXIT(passes_twice("step.end@2=kill"), testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(passes_twice("step.end@2=exit:37"), testing::ExitedWithCode(37), "");
  EXPECT_EXIT(passes_twice("step.end@2=abort"), testing::KilledBySignal(SIGABRT), "");
  EXPECT_EXIT(
      passes_twice("step.end@2=segv"), [](int state) { return state != 0; }, "");
  EXPECT_EXIT(passes_twice("step.end@3=kill"), testing::ExitedWithCode(0), "");
}

TEST(FaultPoints, TouchFaultsPages) {
  const auto faults = faults_of("step.begin=touch:300");
  const std::uint64_t before = posix_env().processes().facts(getpid())->minor_faults;
  const std::int64_t begin_ns = posix_env().monotonic_ns();
  HF_FAULT_POINT(*faults, "step.begin");
  EXPECT_GE(posix_env().monotonic_ns() - begin_ns, 300'000'000);
  EXPECT_GE(posix_env().processes().facts(getpid())->minor_faults, before + 4) << "huge pages are few";
  EXPECT_FALSE(FaultPoints::parse("step.begin=touch", 0, posix_env()).ok());
}

TEST(FaultPoints, StopStopsTheProcess) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto faults = faults_of("step.begin=stop");
    HF_FAULT_POINT(*faults, "step.begin");
    test::leave(5);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(state));
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(WEXITSTATUS(state), 5);
}

}  // namespace
}  // namespace holdfast::test
