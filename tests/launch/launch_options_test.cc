// The command line of `holdfast launch`, and the hosts it names.
#include "runtime/launch/launch_options.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

LaunchOptions parsed(const std::vector<std::string>& words) {
  Result<LaunchOptions> options = parse_launch_options(words);
  EXPECT_TRUE(options.ok()) << options.error().message;
  return std::move(options).value();
}
std::string refused(const std::vector<std::string>& words) {
  const Result<LaunchOptions> options = parse_launch_options(words);
  EXPECT_FALSE(options.ok());
  EXPECT_EQ(options.error().code, ExitCode::config);
  return options.error().message;
}

TEST(LaunchOptions, TheLineOfTheContract) {
  const LaunchOptions options =
      parsed({"-np", "4", "--hostfile", "hosts", "run.toml", "--training.steps=9", "--threads=1"});
  EXPECT_EQ(options.ranks, 4);
  EXPECT_EQ(options.hostfile, "hosts");
  EXPECT_EQ(options.config, "run.toml");
  EXPECT_THAT(options.overrides, ElementsAre("--training.steps=9", "--threads=1"));
  EXPECT_EQ(options.notice_ms, 30'000);
  EXPECT_EQ(options.wait_for_hosts_ms, 1'800'000);
  EXPECT_FALSE(options.dry_run);
}

TEST(LaunchOptions, EveryOrderAndSpelling) {
  const LaunchOptions options = parsed({"--run.seed=3", "run.toml", "--dry-run", "--host=a,b", "--np=2",
                                        "--tune", "f", "--notice=5", "--wait-for-hosts=7"});
  EXPECT_EQ(options.ranks, 2);
  EXPECT_EQ(options.hosts, "a,b");
  EXPECT_EQ(options.tune, "f");
  EXPECT_EQ(options.notice_ms, 5'000);
  EXPECT_EQ(options.wait_for_hosts_ms, 7'000);
  EXPECT_TRUE(options.dry_run);
  EXPECT_THAT(options.overrides, ElementsAre("--run.seed=3"));
  EXPECT_EQ(parsed({"-n", "3", "run.toml"}).ranks, 3);
}

TEST(LaunchOptions, ARangeOfRanksAndACommandForHosts) {
  const LaunchOptions options = parsed({"-np", "2:16", "--host-command", "cat hosts", "run.toml"});
  EXPECT_EQ(options.min_ranks, 2);
  EXPECT_EQ(options.ranks, 16);
  EXPECT_EQ(options.host_command, "cat hosts");
  EXPECT_EQ(parsed({"-np", "3", "run.toml"}).min_ranks, 0);
}

TEST(LaunchOptions, SentencesForWhatIsWrong) {
  EXPECT_THAT(refused({}), HasSubstr("launch needs RUN.toml"));
  EXPECT_THAT(refused({"run.toml"}), HasSubstr("launch needs -np N"));
  EXPECT_THAT(refused({"-np", "many", "run.toml"}),
              HasSubstr("-np must be a whole number of 1 to 1000000, got \"many\""));
  EXPECT_THAT(refused({"-np", "0", "run.toml"}), HasSubstr("got \"0\""));
  EXPECT_THAT(refused({"run.toml", "-np"}), HasSubstr("-np has no value"));
  EXPECT_THAT(refused({"-np", "2", "-n", "3", "run.toml"}), HasSubstr("-n is given twice"));
  EXPECT_THAT(refused({"-np", "2", "--hostfil", "h", "run.toml"}),
              HasSubstr("no option --hostfil, did you mean --hostfile?"));
  EXPECT_THAT(refused({"-np", "2", "--host", "a", "--hostfile", "h", "run.toml"}),
              HasSubstr("give one of them"));
  EXPECT_THAT(refused({"-np", "2", "--host-command", "cat h", "--hostfile", "h", "run.toml"}),
              HasSubstr("--hostfile and --host-command both say where the ranks run"));
  EXPECT_THAT(refused({"-np", "4:2", "run.toml"}), HasSubstr("more ranks at least than at most"));
  EXPECT_THAT(refused({"-np", ":2", "run.toml"}), HasSubstr("MIN of -np MIN:MAX must be a whole number"));
  EXPECT_THAT(refused({"-np", "2:", "run.toml"}), HasSubstr("MAX of -np MIN:MAX must be a whole number"));
  EXPECT_THAT(refused({"-np", "2", "run.toml", "more.toml"}), HasSubstr("got also \"more.toml\""));
  EXPECT_THAT(refused({"-np", "2", "--notice", "0", "run.toml"}), HasSubstr("--notice (seconds)"));
}

std::vector<std::string> described(const std::vector<LaunchHost>& hosts) {
  std::vector<std::string> all;
  for (const LaunchHost& host : hosts) all.push_back(fmt::format("{} {}", host.name, host.slots));
  return all;
}

TEST(LaunchHosts, OfAFile) {
  EXPECT_THAT(described(hosts_of_file("# all of them\nnode1 slots=4 max_slots=8\n\n  node2 # the slow "
                                      "one\nnode3 slots=2\nnode1 slots=1")),
              ElementsAre("node1 5", "node2 0", "node3 2"));
  EXPECT_TRUE(hosts_of_file("# none\n").empty());
}

TEST(LaunchHosts, OfAList) {
  EXPECT_THAT(described(hosts_of_list("a:4,b,a,c:2")), ElementsAre("a 5", "b 1", "c 2"));
}

TEST(LaunchHosts, LeftAsAList) {
  std::vector<LaunchHost> hosts = hosts_of_list("a:4,b:4,c:4");
  hosts[1].answers = false;
  EXPECT_EQ(list_of_hosts_left(hosts, 8), "a:4,c:4");
  EXPECT_EQ(list_of_hosts_left(hosts, 4), "a:4") << "the others are spares";
  std::vector<LaunchHost> unknown = hosts_of_file("a\nb\nc\n");
  unknown[0].answers = false;
  EXPECT_EQ(list_of_hosts_left(unknown, 5), "b:3,c:3");
  EXPECT_EQ(list_of_hosts_left(hosts_of_list("a:5,b:1,c:2"), 6, 2), "a:4,c:2")
      << "groups of two inside a host";
}

}  // namespace
}  // namespace holdfast::test
