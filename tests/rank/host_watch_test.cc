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
  const auto told = [](const char* name, const char* machine, std::uint16_t port) {
    return ToldHost{.host = name, .host_id = std::string(name) + "@" + machine, .guard_port = port};
  };
  const ToldHosts hosts =
      different_hosts({told("localhost", "1", 0), told("a", "1", 5), told("localhost", "2", 6),
                       told("localhost", "1", 7), told("localhost", "1", 8)});
  ASSERT_EQ(hosts.facts.size(), 3u);
  EXPECT_EQ(hosts.facts[0].name, "localhost");
  EXPECT_EQ(hosts.facts[0].port, 7) << "of the first rank that knows its guard";
  EXPECT_EQ(hosts.facts[1].name, "a");
  EXPECT_EQ(hosts.facts[2].name, "localhost#2");
  EXPECT_EQ(hosts.index_of.at("localhost@2"), 2);
}

TEST(HostWatch, AHostWithSeveralGuardsIsNamed) {
  const ToldHost a1{.host = "a", .host_id = "a@1", .name_space = "pid:[1]"};
  const ToldHost a2{.host = "a", .host_id = "a@1", .name_space = "pid:[2]"};
  const ToldHost b1{.host = "b", .host_id = "b@1", .name_space = "pid:[1]"};
  const ToldHost b2{.host = "b", .host_id = "b@1", .name_space = "pid:[2]"};
  const ToldHost another_b{.host = "b", .host_id = "b@2", .name_space = "pid:[2]"};
  EXPECT_EQ(host_with_several_guards({a1, b1, another_b}), "");
  EXPECT_EQ(host_with_several_guards({a1, a1, b1}), "");
  EXPECT_EQ(host_with_several_guards({a1, b2, a1, b2}), "") << "numbers of two kernels";
  EXPECT_EQ(host_with_several_guards({a1, b1, b2}), "b");
  EXPECT_EQ(host_with_several_guards({a2, b1, a1}), "a");
}

}  // namespace
}  // namespace holdfast
