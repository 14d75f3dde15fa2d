#include "runtime/metrics/notifier.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/run/event_log.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

class NotifierTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(env_.make_directories(paths_.directory).ok()); }
  std::unique_ptr<Notifier> begin(const std::string& command, NotifyMind::Settings mind = {},
                                  std::int64_t timeout_ms = 5'000) {
    return std::make_unique<Notifier>(
        env_,
        Notifier::Settings{.paths = paths_, .command = command, .timeout_ms = timeout_ms, .mind = mind});
  }
  std::string noted() const {
    return "echo \"$HOLDFAST_EVENT $HOLDFAST_STEP $HOLDFAST_LEFT_OUT $HOLDFAST_STATE\" >> " + out_;
  }
  void fault(std::uint64_t step) {
    EventLog log(env_, paths_.events());
    log.others_have_written();
    log.write(
        FaultEvent{.time_us = env_.wall_time_us(), .step = step, .what = FaultEvent::rank, .reason = "x"});
  }
  std::string told() { return env_.text_or_empty(out_); }

  Env& env_ = posix_env();
  TemporaryDirectory folder_;
  RunPaths paths_{folder_.path() + "/run"};
  std::string out_ = folder_.path() + "/told";
};

TEST_F(NotifierTest, EachNoticeIsToldOnceThroughStarts) {
  {
    const auto notifier = begin(noted());
    fault(1);
    fault(2);
  }
  EXPECT_EQ(told(), "fault 1 0 \nfault 2 0 \n");
  fault(3);  // while nobody tells
  {
    const auto notifier = begin(noted());
    fault(4);
    notifier->finish(News{.kind = "finish", .step = 5, .state = "finished"});
  }
  EXPECT_EQ(told(), "fault 1 0 \nfault 2 0 \nfault 3 0 \nfault 4 0 \nfinish 5 0 finished\n");
}

TEST_F(NotifierTest, ARunThatWasBegunWithoutNoticesIsToldFromNowOn) {
  fault(1);
  {
    const auto notifier = begin(noted());
    fault(2);
  }
  EXPECT_EQ(told(), "fault 2 0 \n");
}

TEST_F(NotifierTest, WhatWasLeftOutIsToldByTheNextStart) {
  {
    const auto notifier = begin(noted(), {.at_most = 1});
    for (std::uint64_t step = 1; step <= 5; ++step) fault(step);
  }
  {
    const auto notifier = begin(noted(), {.at_most = 1});
    fault(6);
  }
  EXPECT_EQ(told(), "fault 1 0 \nfault 6 4 \n");
}

TEST_F(NotifierTest, FailuresAreSaidOnceAndSoIsTheirEnd) {
  testing::internal::CaptureStderr();
  {
    const auto notifier =
        begin(fmt::format("test \"$HOLDFAST_STEP\" -gt 2 || {{ echo no route; exit 7; }}; {}", noted()));
    for (std::uint64_t step = 1; step <= 4; ++step) fault(step);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said,
            "holdfast: notify.command ended with exit code 7; it printed: no route (event fault). The run "
            "goes on, and "
            "the next notice is another try\n"
            "holdfast: notify.command works again\n");
  EXPECT_EQ(told(), "fault 3 0 \nfault 4 0 \n");
}

// A command that hangs is killed with what it has started, and holds neither what comes after it nor the end.
TEST_F(NotifierTest, OneThatHangsIsKilled) {
  const std::string late = folder_.path() + "/late";
  testing::internal::CaptureStderr();
  {
    const auto notifier =
        begin(fmt::format("test \"$HOLDFAST_STEP\" != 1 || {{ (sleep 4; touch {}) & sleep 1000; }}; {}", late,
                          noted()),
              {}, /*timeout_ms=*/1'500);
    fault(1);
    fault(2);
    const std::int64_t begin_ns = env_.monotonic_ns();
    notifier->finish(News{.kind = "finish", .step = 3, .state = "saved"});
    EXPECT_LT(env_.monotonic_ns() - begin_ns, 10'000'000'000);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("notify.command took longer than notify.timeout = 1s500ms"));
  EXPECT_EQ(told(), "fault 2 0 \nfinish 3 0 saved\n");
  env_.sleep_us(4'500'000);
  EXPECT_FALSE(env_.status(late)->exists) << "what it had started is dead, too";
}

TEST_F(NotifierTest, TheEndIsToldThoughOneHangs) {
  testing::internal::CaptureStderr();
  {
    const auto notifier = begin(fmt::format("test \"$HOLDFAST_EVENT\" = finish || sleep 1000; {}", noted()),
                                {}, /*timeout_ms=*/600'000);
    fault(1);
    fault(2);
    notifier->finish(News{.kind = "finish", .step = 3, .state = "saved"});
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("because the run ends"));
  EXPECT_EQ(told(), "finish 3 2 saved\n") << "one that was killed, and one that waited";
}

// The end has its own time, though the one of what waited is over in the middle of it.
TEST_F(NotifierTest, TheEndIsNotKilledForWhatCameBefore) {
  {
    const auto notifier = begin("sleep 3; " + noted());
    fault(1);
    notifier->finish(News{.kind = "finish", .step = 3, .state = "saved"});
  }
  EXPECT_EQ(told(), "fault 1 0 \nfinish 3 0 saved\n");
}

// Without patience, as in a recovery, the next one tells what this one could not, and knows of which run it is.
TEST_F(NotifierTest, ATellerThatIsNotWaitedForLeavesTheRest) {
  const auto start = [this] {
    EventLog log(env_, paths_.events());
    log.others_have_written();
    log.write(StartEvent{.time_us = env_.wall_time_us(), .run = "abc", .ranks = 1});
  };
  const std::string begun = folder_.path() + "/begun";
  testing::internal::CaptureStderr();
  {
    const auto notifier = begin(fmt::format("touch {}; sleep 1000", begun), {}, /*timeout_ms=*/600'000);
    start();
    while (!env_.status(begun)->exists) env_.sleep_us(10'000);
    fault(1);
    const std::int64_t begin_ns = env_.monotonic_ns();
    notifier->finish({}, 0);
    EXPECT_LT(env_.monotonic_ns() - begin_ns, 3'000'000'000);
  }
  testing::internal::GetCapturedStderr();
  { const auto notifier = begin(noted() + "; echo \"$HOLDFAST_RUN\" >> " + out_); }
  EXPECT_EQ(told(), "fault 1 1 \nabc\n");
}

}  // namespace
}  // namespace holdfast::test
