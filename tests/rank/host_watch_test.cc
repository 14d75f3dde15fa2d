// Which ranks of a host share a board and a guard, and what the ranks of several hosts tell each other.
#include "runtime/rank/host_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/rank/watch.h"
#include "tests/support/blind_processes.h"

namespace holdfast {
namespace {

TEST(HostWatch, ANamespaceOfPidsHasABoardOfItsOwn) {
  BlindEnv one(posix_env(), "/no/file", "pid:[1]"), same(posix_env(), "/no/file", "pid:[1]");
  BlindEnv other(posix_env(), "/no/file", "pid:[2]");
  EXPECT_EQ(watched_board(one), watched_board(same));
  EXPECT_NE(watched_board(one), watched_board(other));
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
}  // namespace holdfast
