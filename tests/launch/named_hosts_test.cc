// Hosts that a command prints.
#include "runtime/launch/named_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::HasSubstr;

LaunchOptions with_command(const std::string& command) {
  LaunchOptions options;
  options.ranks = 2;
  options.host_command = command;
  return options;
}

std::string refused(const std::string& command) {
  const Result<std::vector<LaunchHost>> hosts = named_hosts(posix_env(), with_command(command));
  EXPECT_FALSE(hosts.ok()) << command;
  if (hosts.ok()) return "";
  EXPECT_EQ(hosts.error().code, ExitCode::config);
  return hosts.error().message;
}

TEST(NamedHosts, AreThoseThatACommandPrints) {
  const auto hosts =
      named_hosts(posix_env(), with_command("echo warning >&2; echo a slots=2; echo b slots=4"));
  ASSERT_TRUE(hosts.ok()) << hosts.error().message;
  ASSERT_EQ(hosts->size(), 2U) << "what it says on stderr is no host";
  EXPECT_EQ(hosts->front().name, "a");
  EXPECT_EQ(hosts->back().slots, 4);
}

TEST(NamedHosts, ACommandLearnsWhatIsMissing) {
  const LaunchOptions options = with_command(
      "echo \"a$HOLDFAST_HOSTS_MISSING slots=$HOLDFAST_RANKS_MISSING\"; echo $HOLDFAST_WHY_MISSING");
  const auto hosts = named_hosts(posix_env(), options, {.hosts = 1, .ranks = 2, .why = "n2"});
  ASSERT_TRUE(hosts.ok()) << hosts.error().message;
  ASSERT_EQ(hosts->size(), 2U);
  EXPECT_EQ(hosts->front().name, "a1");
  EXPECT_EQ(hosts->front().slots, 2);
  EXPECT_EQ(hosts->back().name, "n2");
}

// Two thousand hosts, whose names are longer than what is kept of other commands.
TEST(NamedHosts, AreAllOfThem) {
  const auto hosts = named_hosts(
      posix_env(),
      with_command("i=0; while [ $i -lt 2000 ]; do echo node$i.example slots=8; i=$((i+1)); done"));
  ASSERT_TRUE(hosts.ok()) << hosts.error().message;
  EXPECT_EQ(hosts->size(), 2000U);
  EXPECT_EQ(hosts->front().name, "node0.example");
}

TEST(NamedHosts, ACommandThatFailsIsASentence) {
  EXPECT_THAT(refused("exit 3"), HasSubstr("the command of --host-command ended with exit code 3"));
  EXPECT_THAT(refused("kill -9 $$"), HasSubstr("was killed by signal 9"));
  EXPECT_THAT(refused("true"), HasSubstr("the command of --host-command names no host"));
  EXPECT_THAT(refused("echo -oProxyCommand=x"),
              HasSubstr("names \"-oProxyCommand=x\", which cannot be the name"));
  EXPECT_THAT(refused("echo 'a;reboot'"),
              HasSubstr("names \"a;reboot\", which cannot be the name of a host"));
  EXPECT_THAT(refused("head -c 2000000 /dev/zero"), HasSubstr("printed more than 1 MiB"));
}

}  // namespace
}  // namespace holdfast::test
