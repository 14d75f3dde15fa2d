// Which ranks of a host share a board and a guard, and what the ranks of several hosts tell each other.
#include "runtime/elastic/host_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/rank/watch.h"
#include "tests/support/blind_processes.h"

namespace holdfast::test {
namespace {

TEST(HostWatch, ANamespaceOfPidsHasABoardOfItsOwn) {
  BlindEnv one(posix_env(), "/no/file", "pid:[1]"), same(posix_env(), "/no/file", "pid:[1]");
  BlindEnv other(posix_env(), "/no/file", "pid:[2]");
  EXPECT_EQ(watched_board(one), watched_board(same));
  EXPECT_NE(watched_board(one), watched_board(other));
}

// Host on which waiting takes no time.
class ImpatientEnv final : public ForwardingEnv {
 public:
  using ForwardingEnv::ForwardingEnv;
  void sleep_us(std::int64_t microseconds) override { now_ns_ += 1'000 * microseconds; }
  std::int64_t monotonic_ns() override { return now_ns_; }
  std::int64_t now_ns_ = 1;
};

// Who makes the board is stopped, or hangs, and lives.
TEST(HostWatch, ARankGoesOnUnwatchedBesideABoardThatIsNeverFinished) {
  BlindEnv host(posix_env(), "/no/file", "pid:[stuck]");
  ImpatientEnv env(host);
  const std::string board = watched_board(env);
  const auto unfinished = env.create_shared_memory(board, 100'000).value();
  ASSERT_TRUE(unfinished->hold(SharedMemory::Hold::shared));
  testing::internal::CaptureStderr();
  const std::unique_ptr<RankWatch> watch =
      begin_watch(env, fail(ExitCode::config, "a rank whose config has errors is watched, too"), 3, 60'000);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(watch, nullptr);
  EXPECT_THAT(said,
              testing::ContainsRegex("rank 3 \\(host .*\\) runs without a watchdog: .* is not made yet"));
  EXPECT_LT(env.now_ns_, 15'000'000'000) << "nanoseconds until it goes on";
  EXPECT_TRUE(env.remove_shared_memory(board).ok()) << "it is left to its maker";
}

TEST(HostWatch, TwoMachinesOfOneNameAreTwoHosts) {
  const auto reported = [](const char* name, const char* machine, std::uint16_t port) {
    return ReportedHost{.host = name, .host_id = std::string(name) + "@" + machine, .guard_port = port};
  };
  const ReportedHosts hosts =
      different_hosts({reported("localhost", "1", 0), reported("a", "1", 5), reported("localhost", "2", 6),
                       reported("localhost", "1", 7), reported("localhost", "1", 8)});
  ASSERT_EQ(hosts.facts.size(), 3u);
  EXPECT_EQ(hosts.facts[0].name, "localhost");
  EXPECT_EQ(hosts.facts[0].port, 7) << "of the first rank that knows its guard";
  EXPECT_EQ(hosts.facts[1].name, "a");
  EXPECT_EQ(hosts.facts[2].name, "localhost#2");
  EXPECT_EQ(hosts.index_of.at("localhost@2"), 2);
}

TEST(HostWatch, AHostWithSeveralGuardsIsNamed) {
  const ReportedHost a1{.host = "a", .host_id = "a@1", .name_space = "pid:[1]"};
  const ReportedHost a2{.host = "a", .host_id = "a@1", .name_space = "pid:[2]"};
  const ReportedHost b1{.host = "b", .host_id = "b@1", .name_space = "pid:[1]"};
  const ReportedHost b2{.host = "b", .host_id = "b@1", .name_space = "pid:[2]"};
  const ReportedHost another_b{.host = "b", .host_id = "b@2", .name_space = "pid:[2]"};
  EXPECT_EQ(host_with_several_guards({a1, b1, another_b}), "");
  EXPECT_EQ(host_with_several_guards({a1, a1, b1}), "");
  EXPECT_EQ(host_with_several_guards({a1, b2, a1, b2}), "") << "numbers of two kernels";
  EXPECT_EQ(host_with_several_guards({a1, b1, b2}), "b");
  EXPECT_EQ(host_with_several_guards({a2, b1, a1}), "a");
}

}  // namespace
}  // namespace holdfast::test
