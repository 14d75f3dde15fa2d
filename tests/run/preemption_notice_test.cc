// Tests how a rank learns that its host is about to be taken away, and whom it tells.
#include "runtime/run/preemption_notice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "runtime/run/requests.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using State = DrainRequest::State;

class PreemptionNoticeTest : public testing::Test {
 protected:
  PreemptionNotice::Settings settings(bool has_launcher) {
    PreemptionNotice::Settings settings{.looks = true, .has_launcher = has_launcher};
    settings.config.notice_every_ms = 1;
    return settings;
  }
  void wait_until(const std::function<bool()>& condition) {
    for (int i = 0; i < 6000 && !condition(); ++i) env_.sleep_us(5000);
    ASSERT_TRUE(condition());
  }
  void expect_asked() {
    wait_until([&] { return !read_drain_requests(env_, paths_).empty(); });
    const std::vector<DrainRequest> requests = read_drain_requests(env_, paths_);
    ASSERT_EQ(requests.size(), 1u);
    EXPECT_EQ(requests[0].host, env_.host_name());
    EXPECT_EQ(requests[0].state, State::notice);
  }

  Env& env_ = posix_env();
  TemporaryDirectory directory_;
  RunPaths paths_{directory_ / "run"};
};

TEST_F(PreemptionNoticeTest, AFileThatAppears) {
  PreemptionNotice::Settings with_file = settings(/*has_launcher=*/true);
  with_file.config.notice_file = directory_ / "preempted";
  PreemptionNotice notice(env_, paths_, with_file);
  EXPECT_TRUE(read_drain_requests(env_, paths_).empty());
  ASSERT_TRUE(env_.replace_text(with_file.config.notice_file, "").ok());
  expect_asked();
  EXPECT_FALSE(notice.stops()) << "the launcher moves the run";
}

TEST_F(PreemptionNoticeTest, ACommandThatEndsWithZero) {
  PreemptionNotice::Settings with_command = settings(/*has_launcher=*/true);
  with_command.config.notice_command = "test -e " + (directory_ / "preempted");
  PreemptionNotice notice(env_, paths_, with_command);
  ASSERT_TRUE(env_.replace_text(directory_ / "preempted", "").ok());
  expect_asked();
}

TEST_F(PreemptionNoticeTest, ASignalToARankThatDoesNotLook) {
  PreemptionNotice::Settings does_not_look = settings(/*has_launcher=*/true);
  does_not_look.looks = false;
  does_not_look.config.notice_command = "true";
  PreemptionNotice notice(env_, paths_, does_not_look);
  env_.sleep_us(20'000);
  EXPECT_TRUE(read_drain_requests(env_, paths_).empty());
  notice.signalled();
  expect_asked();
}

TEST_F(PreemptionNoticeTest, TheRunStopsWhereNobodyCanMoveIt) {
  PreemptionNotice::Settings with_command = settings(/*has_launcher=*/false);
  with_command.config.notice_command = "true";
  PreemptionNotice notice(env_, paths_, with_command);
  wait_until([&] { return notice.stops(); });
  EXPECT_TRUE(read_drain_requests(env_, paths_).empty());
}

TEST_F(PreemptionNoticeTest, TheRunStopsWhereTheLauncherSeesNothing) {
  PreemptionNotice::Settings does_not_look = settings(/*has_launcher=*/true);
  does_not_look.looks = false;
  PreemptionNotice notice(env_, paths_, does_not_look);
  notice.launcher_does_not_see();
  notice.signalled();
  wait_until([&] { return notice.stops(); });
  EXPECT_TRUE(read_drain_requests(env_, paths_).empty());
}

TEST_F(PreemptionNoticeTest, IsToldThoughAPersonAskedInVain) {
  ASSERT_TRUE(write_drain_request(env_, paths_,
                                  {.host = env_.host_name(), .state = State::refused, .sentence = "no room"})
                  .ok());
  PreemptionNotice notice(env_, paths_, settings(/*has_launcher=*/true));
  notice.signalled();
  wait_until([&] { return read_drain_requests(env_, paths_).at(0).state == State::notice; });
}

TEST_F(PreemptionNoticeTest, ACommandUnderWayEndsWithTheRank) {
  PreemptionNotice::Settings with_command = settings(/*has_launcher=*/true);
  with_command.config.notice_command = "sleep 1000";
  const std::int64_t begin_ns = env_.monotonic_ns();
  { PreemptionNotice notice(env_, paths_, with_command); }
  EXPECT_LT(env_.monotonic_ns() - begin_ns, 60'000'000'000);
}

TEST(DrainRequests, AreReadAsTheyWereWritten) {
  Env& env = posix_env();
  const TemporaryDirectory directory;
  const RunPaths paths{directory / "run"};
  const std::vector<DrainRequest> all = {
      {.host = "a-1", .deadline_s = 30},
      {.host = "b.example.org", .state = State::notice},
      {.host = "c", .state = State::begun},
      {.host = "d", .state = State::drained, .step = 12},
      {.host = "e", .state = State::refused, .sentence = "there is no room"},
      {.host = "f",
       .state = State::sick,
       .deadline_s = 30,
       .ranks = 12,
       .sentence = "a link is down: by 1 in 60 s"},
      {.host = "g", .state = State::begun, .sentence = "a link is down"},
      {.host = "h", .state = State::drained, .step = 7, .sentence = "3 links are down"},
  };
  for (const DrainRequest& request : all) ASSERT_TRUE(write_drain_request(env, paths, request).ok());
  ASSERT_TRUE(env.replace_text(paths.requests() + "/drain-i", "what is this\n").ok());
  const std::vector<DrainRequest> read = read_drain_requests(env, paths);
  ASSERT_EQ(read.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(read[i].host, all[i].host);
    EXPECT_EQ(read[i].state, all[i].state);
    EXPECT_EQ(read[i].ranks, all[i].ranks);
    EXPECT_EQ(read[i].deadline_s, all[i].deadline_s);
    EXPECT_EQ(read[i].step, all[i].step);
    EXPECT_EQ(read[i].sentence, all[i].sentence);
  }
  forget_answered_requests(env, paths);
  EXPECT_EQ(read_drain_requests(env, paths).size(), all.size()) << "a start leaves them to its launcher";
  ASSERT_TRUE(remove_drain_request(env, paths, "c").ok());
  EXPECT_EQ(read_drain_requests(env, paths).size(), all.size() - 1);
  const Result<void> odd = write_drain_request(env, paths, {.host = "../../etc"});
  ASSERT_FALSE(odd.ok());
  EXPECT_EQ(odd.error().code, ExitCode::config);
}

}  // namespace
}  // namespace holdfast::test
