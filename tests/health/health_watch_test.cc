// Tests what a run is told of a sick host, and what it is asked to do, by a thread that reads files as those of a kernel.
#include "runtime/health/health_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/core.h>

#include "runtime/run/event_reading.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using State = DrainRequest::State;

class HealthWatchTest : public testing::Test {
 protected:
  void counter(int value) {
    const std::string folder = folder_.path() + "/sys/class/infiniband/mlx5_0/ports/1/counters";
    ASSERT_TRUE(env_.make_directories(folder).ok());
    ASSERT_TRUE(env_.replace_text(folder + "/link_downed", fmt::format("{}\n", value)).ok());
  }
  void begin_log() {
    ASSERT_TRUE(env_.make_directories(paths_.directory).ok());
    ASSERT_TRUE(env_.append_line(paths_.events(), "{}").ok());
  }
  std::unique_ptr<HealthWatch> begin(bool acts, bool has_launcher) {
    Result<std::unique_ptr<HealthWatch>> watch =
        HealthWatch::begin(env_, {.paths = paths_,
                                  .acts = acts,
                                  .has_launcher = has_launcher,
                                  .every_ms = 5,
                                  .places = {.root = folder_.path(), .disks = {}, .reads_log = false}});
    EXPECT_TRUE(watch.ok());
    return std::move(watch).value();
  }
  std::vector<HealthEvent> events() {
    const Result<std::string> text = env_.read_text(paths_.events());
    std::vector<HealthEvent> all;
    if (!text.ok()) return all;
    for_each_event(*text, [&](const Json& json) {
      if (auto event = event_as<HealthEvent>(json)) all.push_back(*std::move(event));
    });
    return all;
  }
  // Waits, with the counter at 0, until the first looks are over, and then for what follows from a higher one.
  void become_sick() {
    env_.sleep_us(100'000);
    counter(2);
    for (int i = 0; i < 2000 && events().empty(); ++i) env_.sleep_us(5'000);
  }

  Env& env_ = posix_env();
  TemporaryDirectory folder_;
  const RunPaths paths_{folder_.path() + "/run"};
};

TEST_F(HealthWatchTest, TellsAFindingOnceAndWhatItWouldDo) {
  counter(0);
  begin_log();
  const std::unique_ptr<HealthWatch> watch = begin(/*acts=*/false, /*has_launcher=*/true);
  become_sick();
  env_.sleep_us(100'000);
  const std::vector<HealthEvent> told = events();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].host, env_.host_name());
  EXPECT_EQ(told[0].rule, "infiniband-down");
  EXPECT_EQ(told[0].part, "mlx5_0/1");
  EXPECT_EQ(told[0].reading, "infiniband: link_downed");
  EXPECT_EQ(told[0].value, 2);
  EXPECT_EQ(told[0].threshold, 1);
  EXPECT_EQ(told[0].action, "drain");
  EXPECT_EQ(told[0].answer, "would ask to leave");
  EXPECT_THAT(read_drain_requests(env_, paths_), IsEmpty());
}

TEST_F(HealthWatchTest, AsksForItsHostToBeLeft) {
  counter(0);
  begin_log();
  const std::unique_ptr<HealthWatch> watch = begin(/*acts=*/true, /*has_launcher=*/true);
  become_sick();
  ASSERT_THAT(events(), SizeIs(1));
  EXPECT_EQ(events()[0].answer, "asked to leave");
  const std::vector<DrainRequest> requests = read_drain_requests(env_, paths_);
  ASSERT_THAT(requests, SizeIs(1));
  EXPECT_EQ(requests[0].host, env_.host_name());
  EXPECT_EQ(requests[0].state, State::sick);
  EXPECT_EQ(requests[0].deadline_s, 0);
  EXPECT_THAT(requests[0].sentence, HasSubstr("an InfiniBand link went down"));
}

// As on the disk of a host whose run directory is its own: nobody reads a log that it would begin.
TEST_F(HealthWatchTest, BeginsNoLog) {
  counter(0);
  ASSERT_TRUE(env_.make_directories(paths_.directory).ok());
  const std::unique_ptr<HealthWatch> watch = begin(/*acts=*/true, /*has_launcher=*/true);
  env_.sleep_us(100'000);
  counter(2);
  for (int i = 0; i < 2000 && read_drain_requests(env_, paths_).empty(); ++i) env_.sleep_us(5'000);
  EXPECT_THAT(read_drain_requests(env_, paths_), SizeIs(1));
  EXPECT_FALSE(env_.status(paths_.events())->exists);
  begin_log();
  for (int i = 0; i < 2000 && events().empty(); ++i) env_.sleep_us(5'000);
  EXPECT_THAT(events(), SizeIs(1)) << "what waited for it";
}

TEST(HealthAnswers, AreByWhatIsAskedForAndWhatMayBeDone) {
  const auto answer = [](HealthAction action, bool acts, bool has_launcher) {
    return answer_to(action, acts, has_launcher);
  };
  EXPECT_EQ(answer(HealthAction::watch, true, true), HealthAnswer::told);
  EXPECT_EQ(answer(HealthAction::drain, false, true), HealthAnswer::would_ask);
  EXPECT_EQ(answer(HealthAction::drain, true, false), HealthAnswer::nobody);
  EXPECT_EQ(answer(HealthAction::reboot, true, true), HealthAnswer::ask);
  const HealthFinding lost{
      .rule = "gpu-off-the-bus", .action = HealthAction::leave_out, .sentence = "it is gone"};
  EXPECT_EQ(request_of(lost, "n2").deadline_s, 30) << "nobody waits for the end of a long step there";
  EXPECT_EQ(request_of(lost, "n2").sentence, "it is gone (gpu-off-the-bus, leave_out)");
  EXPECT_EQ(line_of(lost, HealthAnswer::ask, "n2"),
            "host n2: it is gone (gpu-off-the-bus); the run is asked to leave the host");
}

TEST(HealthAnswers, XidsHaveANumberAndNoThreshold) {
  HealthJudge judge;
  const std::vector<HealthFinding> findings =
      judge.take({.time_ms = 5,
                  .source = "kmsg",
                  .name = "line",
                  .text = "NVRM: Xid (PCI:0000:18:00): 95, pid=7, Uncontained: SM"});
  ASSERT_THAT(findings, SizeIs(1));
  const HealthEvent event = event_of(findings[0], HealthAnswer::would_ask, "n2");
  EXPECT_EQ(event.time_us, 5000);
  EXPECT_EQ(event.value, 95);
  EXPECT_EQ(event.threshold, std::nullopt);
  EXPECT_EQ(event.reading, "kmsg");
}

TEST(HealthPause, KeepsTheLooksAtAThousandthOfAProcessor) {
  EXPECT_EQ(pause_after_look_ms(10'000, 2'000'000), 10'000) << "a look of 2 ms";
  EXPECT_EQ(pause_after_look_ms(10'000, 25'000'000), 25'000) << "a look of 25 ms";
}

}  // namespace
}  // namespace holdfast::test
