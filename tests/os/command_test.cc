// Commands that a run starts beside itself.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "runtime/os/env.h"
#include "runtime/os/processes.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

CommandEnd run(Command command) {
  if (command.timeout_ms == 0) command.timeout_ms = 60'000;
  Result<CommandEnd> end = posix_env().run_command(command);
  EXPECT_TRUE(end.ok()) << end.error().message;
  return std::move(end).value();
}

TEST(Command, EndsWithItsExitCode) {
  EXPECT_TRUE(run({.line = "true"}).succeeded());
  const CommandEnd end = run({.line = "exit 7"});
  EXPECT_EQ(end.how, CommandEnd::How::exited);
  EXPECT_EQ(end.code, 7);
  EXPECT_FALSE(end.succeeded());
}

TEST(Command, HasTheVariablesAndTheRestOfTheEnvironment) {
  const CommandEnd end =
      run({.line = R"(echo "$HOME|$PATH|$NEW")", .variables = {{"HOME", "/h"}, {"NEW", "a b"}}});
  EXPECT_EQ(end.output, "/h|" + posix_env().variable("PATH") + "|a b\n");
}

TEST(Command, KeepsTheEndOfBothStreams) {
  const CommandEnd end =
      run({.line = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; echo last words >&2"});
  EXPECT_LE(end.output.size(), 2000U);
  EXPECT_TRUE(end.output.ends_with("line 1999\nlast words\n")) << end.output;
}

TEST(Command, ReadsNothingOfThisProcess) {
  EXPECT_EQ(run({.line = "cat; echo end"}).output, "end\n");
}

TEST(Command, IsKilledWithAllThatItStartedWhenItTakesTooLong) {
  const TemporaryDirectory directory;
  const std::string late = directory / "late";
  const CommandEnd end = run({.line = "(sleep 2; touch '" + late + "') & sleep 60", .timeout_ms = 300});
  EXPECT_EQ(end.how, CommandEnd::How::timed_out);
  EXPECT_FALSE(end.succeeded());
  posix_env().sleep_us(2'500'000);
  EXPECT_FALSE(posix_env().status(late)->exists);
}

TEST(Command, IsKilledWhenItIsCancelled) {
  std::atomic<bool> cancelled = false;
  std::jthread canceller([&] {
    posix_env().sleep_us(200'000);
    cancelled = true;
  });
  EXPECT_EQ(run({.line = "sleep 60", .cancelled = &cancelled}).how, CommandEnd::How::cancelled);
}

// Else it would go on beside that of the process that takes over.
TEST(Command, DiesWithTheProcessThatRunsIt) {
  const TemporaryDirectory directory;
  const std::string reported = directory / "told";
  const pid_t runner = ::fork();
  ASSERT_GE(runner, 0);
  if (runner == 0) {
    static_cast<void>(run({.line = "echo $$ > '" + reported + ".new' && mv '" + reported + ".new' '" +
                                   reported + "' && exec sleep 60"}));
    ::_exit(0);
  }
  while (!posix_env().status(reported)->exists) posix_env().sleep_us(1000);
  const std::int64_t shell = std::stoll(posix_env().read_text(reported).value());
  ASSERT_EQ(::kill(runner, SIGKILL), 0);
  ASSERT_EQ(::waitpid(runner, nullptr, 0), runner);
  Processes& processes = posix_env().processes();
  const auto is_there = [&] {
    const std::optional<ProcessFacts> facts = processes.facts(shell);
    return facts.has_value() && facts->state != 'Z';
  };
  for (int looks = 0; is_there() && looks < 10'000; ++looks) posix_env().sleep_us(1000);
  EXPECT_FALSE(is_there());
}

TEST(Command, ThatClosesItsOutputIsStillWaitedFor) {
  EXPECT_EQ(run({.line = "exec >&- 2>&-; sleep 0.3; exit 3"}).code, 3);
}

TEST(Command, ThatDiesNamesTheSignal) {
  const CommandEnd end = run({.line = "kill -9 $$"});
  EXPECT_EQ(end.how, CommandEnd::How::killed);
  EXPECT_EQ(end.code, 9);
}

}  // namespace
}  // namespace holdfast::test
