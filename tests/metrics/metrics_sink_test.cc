#include "runtime/metrics/metrics_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/run/event_log.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

class MetricsSinkTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(env_.make_directories(paths_.directory).ok()); }
  std::unique_ptr<MetricsSink> begin(std::int64_t every_ms = 1) {
    return std::make_unique<MetricsSink>(env_, std::make_unique<EventLog>(env_, paths_.events()),
                                         MetricsSink::Settings{.paths = paths_,
                                                               .every_ms = every_ms,
                                                               .tensorboard = true,
                                                               .may_write = [this] { return may_write_; }});
  }
  void step(MetricsSink& sink, std::uint64_t number) {
    EventLine line;
    EXPECT_TRUE(sink.append(put_event(StepEvent{.time_us = env_.wall_time_us(),
                                                .step = number,
                                                .loss = 2.5,
                                                .step_duration_ms = 1},
                                      line)
                                .end())
                    .ok());
  }
  std::string metrics() { return env_.text_or_empty(paths_.metrics()); }

  Env& env_ = posix_env();
  TemporaryDirectory folder_;
  RunPaths paths_{folder_.path() + "/run"};
  bool may_write_ = true;
};

TEST_F(MetricsSinkTest, CountersAreOfTheWholeRun) {
  {
    const auto sink = begin();
    for (std::uint64_t number = 1; number <= 3; ++number) step(*sink, number);
  }
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_steps_total 3\n"));
  {
    const auto sink = begin();
    step(*sink, 4);
    EventLog launcher(env_, paths_.events());
    launcher.write(
        FaultEvent{.time_us = env_.wall_time_us(), .level = FaultEvent::by_launcher, .reason = "x"});
    sink->others_have_written();
    step(*sink, 5);
  }
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_steps_total 5\n"));
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_events_total{kind=\"fault\"} 1\n"));
  EXPECT_EQ(env_.list(paths_.tensorboard())->size(), 2U) << "one file for each start";
}

TEST_F(MetricsSinkTest, TheFileIsReplacedNowAndThen) {
  const auto sink = begin(/*every_ms=*/3'600'000);
  step(*sink, 1);
  EXPECT_THAT(metrics(), HasSubstr("holdfast_steps_total 1\n")) << "the first one at once";
  step(*sink, 2);
  EXPECT_THAT(metrics(), HasSubstr("holdfast_steps_total 1\n"));
  ASSERT_TRUE(sink->flush().ok());
  EXPECT_THAT(metrics(), HasSubstr("holdfast_steps_total 2\n"));
}

// A run directory that another writer has by now, or whose metrics cannot be written, loses no event.
TEST_F(MetricsSinkTest, TheLogGoesOnWithoutMetrics) {
  may_write_ = false;
  {
    const auto sink = begin();
    step(*sink, 1);
  }
  EXPECT_EQ(metrics(), "");
  may_write_ = true;
  ASSERT_TRUE(env_.make_directories(paths_.metrics() + "/taken").ok());
  {
    const auto sink = begin();
    step(*sink, 2);
  }
  EXPECT_THAT(env_.text_or_empty(paths_.events()),
              testing::AllOf(HasSubstr("\"step\":1"), HasSubstr("\"step\":2")));
  ASSERT_TRUE(env_.remove_tree(paths_.metrics()).ok());
  {
    const auto sink = begin();
    step(*sink, 3);
  }
  EXPECT_THAT(metrics(), HasSubstr("holdfast_steps_total 3\n"));
}

}  // namespace
}  // namespace holdfast::test
