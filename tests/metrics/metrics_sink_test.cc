#include "runtime/metrics/metrics_sink.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/run/event_log.h"
#include "runtime/run/event_reading.h"
#include "tests/support/faulty_env.h"
#include "tests/support/forwarding_env.h"
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
    EXPECT_TRUE(
        sink.append(put_event(
                        StepEvent{
                            .time_us = time_us_ += 1'000, .step = number, .loss = 2.5, .step_duration_ms = 1},
                        line)
                        .end())
            .ok());
  }
  std::string metrics() { return env_.text_or_empty(paths_.metrics()); }

  Env& env_ = posix_env();
  TemporaryDirectory folder_;
  RunPaths paths_{folder_.path() + "/run"};
  bool may_write_ = true;
  std::int64_t time_us_ = env_.wall_time_us();  // of the newest step
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
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_events_total{kind=\"step\"} 5\n"));
  EXPECT_EQ(env_.list(paths_.tensorboard())->size(), 2U) << "one file for each start";
}

// The launcher writes beside a rank, which is told nothing of it, and the log itself says what it has lost.
TEST_F(MetricsSinkTest, LinesOfOthersAreCountedOnceAndInTheirOrder) {
  EventLog launcher(env_, paths_.events());
  {
    const auto sink = begin();
    step(*sink, 1);
    launcher.write(
        RecoveryEvent{.time_us = env_.wall_time_us(), .level = RecoveryEvent::by_launcher, .lost_steps = 3});
    EventLine line;
    EXPECT_TRUE(
        sink->insist(put_event(StartEvent{.time_us = env_.wall_time_us(), .ranks = 3}, line).end()).ok());
    step(*sink, 2);
    EXPECT_THAT(metrics(), HasSubstr("\nholdfast_events_total{kind=\"recovery\"} 1\n"));
    sink->lost(7);
    step(*sink, 3);
    launcher.write(
        FaultEvent{.time_us = env_.wall_time_us(), .level = FaultEvent::by_launcher, .reason = "x"});
  }
  renew_metrics(env_, paths_);
  MetricsBook all;
  for_each_event(env_.text_or_empty(paths_.events()), [&](const Json& each) { all.take(each); });
  EXPECT_EQ(metrics(), all.text());
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_events_total{kind=\"gap\"} 1\n"));
  const auto next = begin();
  step(*next, 4);
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_events_total{kind=\"step\"} 4\n"));
}

// A disk that takes nothing for a while: a line is counted when the log has it.
TEST_F(MetricsSinkTest, LinesThatWaitForTheDiskAreCountedLater) {
  FaultyEnv env(env_);
  MetricsSink sink(env_, std::make_unique<EventLog>(env, paths_.events()),
                   MetricsSink::Settings{.paths = paths_, .every_ms = 1});
  step(sink, 1);
  env.inject({.operation = Operation::append_line, .reason = ENOSPC});
  step(sink, 2);
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_steps_total 1\n"));
  step(sink, 3);
  step(sink, 4);
  ASSERT_TRUE(sink.flush().ok());
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_steps_total 4\n"));
}

// What no other line may follow soon is shown at once, and steps when they are due.
TEST_F(MetricsSinkTest, ThePageShowsFaultsAtOnce) {
  const auto page = std::make_shared<MetricsPage>();
  MetricsSink sink(env_, std::make_unique<EventLog>(env_, paths_.events()),
                   {.paths = paths_, .every_ms = 0, .page = page});
  step(sink, 1);
  step(sink, 2);
  EXPECT_THAT(*page->get(), HasSubstr("\nholdfast_step 1\n"));
  const auto line_of = [&](const char* reason) {
    EventLine line;
    return std::string(
        put_event(FaultEvent{.time_us = env_.wall_time_us(), .step = 2, .reason = reason}, line).end());
  };
  EXPECT_TRUE(sink.append(line_of("x")).ok());
  EXPECT_THAT(*page->get(), HasSubstr("\nholdfast_events_total{kind=\"fault\"} 1\n"));
  EXPECT_TRUE(sink.insist(line_of("y")).ok());
  EXPECT_THAT(*page->get(), HasSubstr("\nholdfast_events_total{kind=\"fault\"} 2\n"));
}

// A writer goes on from the state of the one before, so that it reads no more of a long log than its end, and knows the steps
// that it makes again.
TEST_F(MetricsSinkTest, ALongLogIsNotReadAgain) {
  const auto line_of = [](const auto& event) {
    EventLine line;
    return std::string(put_event(event, line).end());
  };
  std::string lines = line_of(StartEvent{.time_us = 1'000'000, .run = "r"}) + "\n";
  std::uint64_t number = 0;
  while (lines.size() < 3 * MetricsSink::tail_bytes) {
    ++number;
    lines += line_of(StepEvent{.time_us = 1'000'000 + static_cast<std::int64_t>(number) * 1000,
                               .step = number,
                               .step_duration_ms = 1}) +
             "\n";
  }
  ASSERT_TRUE(env_.replace_text(paths_.events(), lines).ok());
  MetricsBook all;
  for_each_event(lines, [&](const Json& each) { all.take(each); });
  Json state = all.state();
  state["counted_bytes"] = lines.size();
  ASSERT_TRUE(env_.replace_text(paths_.metrics_state(), state.dump_any()).ok());
  {
    const auto sink = begin();
    const StepEvent again = {.time_us = 1'001'000 + static_cast<std::int64_t>(number) * 1000,
                             .step = number,
                             .step_duration_ms = 1,
                             .recomputed = true};
    ASSERT_TRUE(sink->append(line_of(again)).ok());
  }
  EXPECT_THAT(metrics(), HasSubstr(fmt::format("\nholdfast_steps_total{{run=\"r\"}} {}\n", number + 1)));
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_steps_again_total{run=\"r\"} 1\n"));
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_time_seconds{run=\"r\",use=\"lost work, stalls\"} 0.001\n"));
  ASSERT_TRUE(env_.remove(paths_.metrics_state()).ok());
  {
    const auto sink = begin();
    step(*sink, number + 1);
  }
  const std::string text = metrics();
  constexpr std::string_view name = "\nholdfast_steps_total ";
  const std::size_t at = text.find(name);
  ASSERT_NE(at, std::string::npos) << "the start is not in what was read";
  const std::uint64_t counted = std::stoull(text.substr(at + name.size()));
  EXPECT_LT(counted, number / 2);
  EXPECT_GT(counted, number / 4);
}

// A job whose memory is lost goes on from a checkpoint of long ago: what it loses is known all the same.
TEST_F(MetricsSinkTest, StepsThatAreMadeAgainAreFoundFarBack) {
  std::uint64_t number = 0;
  {
    const auto sink = begin(/*every_ms=*/3'600'000);
    while (log_bytes(env_, paths_) < 3 * MetricsSink::tail_bytes) step(*sink, ++number);
  }
  {
    const auto sink = begin();
    EventLine line;
    EXPECT_TRUE(
        sink->insist(put_event(StartEvent{.time_us = time_us_, .resumed_from_step = {10}}, line).end()).ok());
    for (std::uint64_t again = 11; again < 20; ++again) step(*sink, again);
  }
  MetricsBook all;
  for_each_event(env_.text_or_empty(paths_.events()), [&](const Json& each) { all.take(each); });
  EXPECT_EQ(metrics(), all.text());
}

// It went back before, too, and has made fewer steps since: the newest lines have not the steps that come again.
TEST_F(MetricsSinkTest, StepsOfTwoRollBacksAreFound) {
  const auto go_on_behind = [&](MetricsSink& sink, std::uint64_t number) {
    EventLine line;
    const StartEvent start{.time_us = time_us_, .resumed_from_step = {number}};
    EXPECT_TRUE(sink.insist(put_event(start, line).end()).ok());
  };
  std::uint64_t number = 0;
  {
    const auto sink = begin(/*every_ms=*/3'600'000);
    while (log_bytes(env_, paths_) < 3 * MetricsSink::tail_bytes) step(*sink, ++number);
  }
  {
    const auto sink = begin(/*every_ms=*/3'600'000);
    go_on_behind(*sink, 10);
    for (std::uint64_t again = 11; again < number / 2; ++again) step(*sink, again);
  }
  {
    // Killed before it wrote its metrics a second time: the launcher counts its steps.
    EventLog log(env_, paths_.events());
    log.write(StartEvent{.time_us = time_us_, .resumed_from_step = {number / 2 - 5}});
    for (std::uint64_t again = number / 2 - 4; again < number / 2 + 9; ++again)
      log.write(StepEvent{.time_us = time_us_ += 1'000, .step = again, .step_duration_ms = 1});
  }
  renew_metrics(env_, paths_);
  MetricsBook all;
  for_each_event(env_.text_or_empty(paths_.events()), [&](const Json& each) { all.take(each); });
  EXPECT_EQ(metrics(), all.text());
}

// Its first line waits for a disk that is full: nothing that is counted is counted again.
TEST_F(MetricsSinkTest, AWriterWhoseFirstLineWaitsCountsNothingTwice) {
  {
    const auto sink = begin();
    for (std::uint64_t number = 1; number <= 3; ++number) step(*sink, number);
  }
  FaultyEnv env(env_);
  env.inject({.operation = Operation::append_line, .reason = ENOSPC});
  {
    MetricsSink sink(env_, std::make_unique<EventLog>(env, paths_.events()),
                     MetricsSink::Settings{.paths = paths_, .every_ms = 1});
    step(sink, 4);
    EXPECT_THAT(metrics(), HasSubstr("\nholdfast_steps_total 3\n"));
    ASSERT_TRUE(sink.flush().ok());
  }
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_steps_total 4\n"));
}

// Refuses to open the log as often as a test says.
class DeafEnv final : public ForwardingEnv {
 public:
  explicit DeafEnv(Env& inner) : ForwardingEnv(inner) {}
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    if (mode == OpenMode::read && path.ends_with("events.jsonl") && refusals > 0) {
      --refusals;
      return fail(ExitCode::checkpoint, "{} cannot be read", path);
    }
    return ForwardingEnv::open(path, mode);
  }
  int refusals = 0;
};

// Nothing is lost, nor counted twice, and the state that an earlier writer has left stays.
TEST_F(MetricsSinkTest, ALogThatCannotBeReadIsReadLater) {
  {
    const auto sink = begin();
    for (std::uint64_t number = 1; number <= 3; ++number) step(*sink, number);
  }
  DeafEnv deaf(env_);
  MetricsSink sink(deaf, std::make_unique<EventLog>(env_, paths_.events()),
                   MetricsSink::Settings{.paths = paths_, .every_ms = 1});
  for (std::uint64_t number = 4; number <= 8; ++number) {
    deaf.refusals = number < 6 ? 2 : 0;  // behind the line, and before the file is written
    step(sink, number);
    EXPECT_EQ(deaf.refusals, 0);
  }
  ASSERT_TRUE(sink.flush().ok());
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_steps_total 8\n"));
}

// Who removes older parts of the log keeps what was counted of them.
TEST_F(MetricsSinkTest, PartsThatWereRemovedStayCounted) {
  {
    const auto sink = begin();
    for (std::uint64_t number = 1; number <= 30; ++number) step(*sink, number);
  }
  ASSERT_TRUE(env_.replace_text(paths_.events(), "{}\n").ok());
  const auto sink = begin();
  step(*sink, 31);
  ASSERT_TRUE(sink->flush().ok());
  EXPECT_THAT(metrics(), HasSubstr("\nholdfast_steps_total 31\n"));
}

// A caller that waits for a line does not wait until the log has been read.
TEST_F(MetricsSinkTest, ALineThatIsWaitedForIsCountedWithTheNext) {
  const auto sink = begin();
  EventLine line;
  ASSERT_TRUE(
      sink->insist(put_event(StartEvent{.time_us = env_.wall_time_us(), .ranks = 3}, line).end()).ok());
  EXPECT_EQ(metrics(), "");
  EXPECT_THAT(env_.text_or_empty(paths_.events()), HasSubstr("\"event\":\"start\""));
  step(*sink, 1);
  EXPECT_THAT(metrics(), HasSubstr("holdfast_last_start_ranks 3\n"));
  EXPECT_THAT(metrics(), HasSubstr("holdfast_events_total{kind=\"start\"} 1\n"));
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
