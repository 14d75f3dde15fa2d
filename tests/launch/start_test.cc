// What the launcher learns about a start: from its ranks' own words, its processes, its log and its hosts.
#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "runtime/launch/host_command.h"
#include "runtime/launch/host_probe.h"
#include "runtime/launch/job.h"
#include "runtime/launch/run_processes.h"
#include "runtime/launch/run_progress.h"
#include "runtime/os/posix_file.h"
#include "runtime/os/processes.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/run_directory.h"
#include "tests/launch/variables_env.h"
#include "tests/support/blind_processes.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::Optional;

TEST(LaunchRecord, RanksTellThatTheyLiveAndHowTheyEnd) {
  const TemporaryDirectory directory;
  VariablesEnv env({{launch_variable, directory.path()}});
  EXPECT_EQ(launched_start(env), directory.path().substr(directory.path().rfind('/') + 1));
  EXPECT_TRUE(read_launched_ranks(env, directory.path()).empty());
  report_ready_to_launcher(env, 12);
  report_ready_to_launcher(env, 3);
  report_end_to_launcher(env, 3, ExitCode::saved, SIGTERM);
  const std::vector<LaunchedRank> ranks = read_launched_ranks(env, directory.path());
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].rank, 3);
  EXPECT_EQ(ranks[0].end, ExitCode::saved);
  EXPECT_EQ(ranks[0].signal, SIGTERM);
  EXPECT_EQ(ranks[1].rank, 12);
  EXPECT_EQ(ranks[1].end, std::nullopt);
  EXPECT_EQ(ranks[1].host, env.host_name());
  EXPECT_TRUE(is_here(env, ranks[1]));
  FaultyEnv another(env);
  another.move_to_machine("another");
  EXPECT_FALSE(is_here(another, ranks[1])) << "a host of the same name";
  EXPECT_EQ(ranks[1].process, getpid());
  EXPECT_EQ(ranks[1].started_ticks, env.processes().facts(getpid())->started_ticks);
}

TEST(LaunchRecord, WhatDiedLongAfterTheFirstDeathDiedOfIt) {
  constexpr std::int64_t s = 1'000'000;
  const auto died = [](const std::string& host, std::int64_t died_us, std::uint64_t step) {
    return LaunchedRank{.host = host, .step_at_death = step, .died_us = died_us};
  };
  const std::vector<LaunchedRank> hang = {died("a", 31 * s, 4), died("b", s, 4), died("c", 32 * s, 4)};
  EXPECT_THAT(hosts_of_deaths(hang, 4), ElementsAre("b")) << "the others waited for it, and were ended";
  EXPECT_THAT(hosts_of_deaths(hang, 9), ElementsAre("a", "b", "c")) << "steps were made since";
  EXPECT_THAT(hosts_of_deaths({died("a", 2 * s, 4), died("b", s, 4)}, 4), ElementsAre("a", "b"));
  EXPECT_THAT(hosts_of_deaths({died("a", 0, 0), died("b", s, 4)}, 4), ElementsAre("a", "b"))
      << "its guard is gone";
  EXPECT_THAT(hosts_of_deaths({died("b", s, 4), died("c", 99 * s, 9)}, 9), ElementsAre("b", "c"))
      << "without b the run went on";
}

TEST(LaunchRecord, NothingIsToldWithoutALauncher) {
  VariablesEnv env(std::map<std::string, std::string>{});
  EXPECT_EQ(launched_start(env), "");
  report_ready_to_launcher(env, 0);
  report_end_to_launcher(env, 0, ExitCode::done);
  EXPECT_TRUE(read_launched_ranks(env, "/no/such/directory").empty());
}

TEST(LaunchRecord, GuardsTellWhomTheyEnded) {
  const TemporaryDirectory directory;
  VariablesEnv env({{launch_variable, directory.path()}});
  EXPECT_TRUE(read_reported_hangs(env, directory.path()).empty());
  const std::int64_t before_us = env.wall_time_us();
  report_hang_to_launcher(env, 2, "rank 2 (host \xff) hangs");
  report_hang_to_launcher(env, -1, "all wait");
  ASSERT_TRUE(env.append_line(directory / "guard-other",
                              "{\"time_us\":5,\"rank\":7,\"verdict\":\"rank 7 hangs\"}\n{\"rank\":3}\n{\"ran")
                  .ok());
  const std::vector<ReportedHang> reported = read_reported_hangs(env, directory.path());
  ASSERT_EQ(reported.size(), 3u);
  EXPECT_EQ(reported[0].rank, 7) << "by time, whoever said it";
  EXPECT_EQ(reported[1].rank, 2);
  EXPECT_GE(reported[1].time_us, before_us);
  EXPECT_EQ(reported[2].sentence, "all wait");
  EXPECT_TRUE(read_launched_ranks(env, directory.path()).empty()) << "a guard is no rank";
}

TEST(LaunchRecord, GuardsTellHowARankDied) {
  const TemporaryDirectory directory;
  VariablesEnv env({{launch_variable, directory.path()}});
  report_ready_to_launcher(env, 2);
  report_death_to_launcher(env, 2, getpid() + 1, "signal 6 (SIGABRT)", 4);
  report_death_to_launcher(env, 1, getpid(), "signal 6 (SIGABRT)", 4);
  const std::string of_another_host =
      fmt::format("{{\"rank\":2,\"process\":{},\"ended\":\"exit code 1\"}}\n", getpid());
  ASSERT_TRUE(env.append_line(directory / "guard-other", of_another_host).ok());
  std::vector<LaunchedRank> ranks = read_launched_ranks(env, directory.path());
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_EQ(ranks[0].cause, "") << "other processes";
  EXPECT_EQ(ranks[0].step_at_death, 0u);
  report_death_to_launcher(env, 2, getpid(), "signal 9 (SIGKILL)", 5);
  ranks = read_launched_ranks(env, directory.path());
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_EQ(ranks[0].cause, "signal 9 (SIGKILL)");
  EXPECT_EQ(ranks[0].step_at_death, 5u);
  EXPECT_TRUE(read_reported_hangs(env, directory.path()).empty()) << "that is no hang";
}

TEST(LaunchRecord, GuardsTellInWhichKernelARankEnded) {
  const TemporaryDirectory directory;
  VariablesEnv env({{launch_variable, directory.path()}});
  const KernelFault fault = {
      .kernel = {.op = "add", .implementation = "mine", .digest = "01", .library = "mine.so"},
      .how = KernelEnd::hang,
      .rank = 2,
      .host = "a",
      .step = 9};
  report_kernel_fault_to_launcher(env, fault);
  ASSERT_TRUE(
      env.append_line(directory / "guard-other", "{\"time_us\":5,\"kernel_fault\":{\"kernel\":3}}").ok());
  const std::vector<ReportedKernelFault> reported = read_reported_kernel_faults(env, directory.path());
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].fault, fault);
  EXPECT_GT(reported[0].time_us, 0);
  EXPECT_TRUE(read_reported_hangs(env, directory.path()).empty());
}

TEST(RunProgress, TheCausesOfDeathsThatAreKnown) {
  const auto rank = [](int number, const std::string& cause) {
    return LaunchedRank{.rank = number, .cause = cause};
  };
  const std::string killed = "signal 9 (SIGKILL)", left = "exit code 3";
  EXPECT_EQ(causes_of({}), "");
  EXPECT_EQ(causes_of(std::vector{rank(1, "")}), "");
  EXPECT_EQ(causes_of(std::vector{rank(1, killed)}), ": signal 9 (SIGKILL)");
  EXPECT_EQ(causes_of(std::vector{rank(1, killed), rank(2, killed)}), ": signal 9 (SIGKILL)");
  EXPECT_EQ(causes_of(std::vector{rank(1, killed), rank(2, ""), rank(3, left)}),
            ": rank 1: signal 9 (SIGKILL), rank 3: exit code 3");
}

TEST(LaunchRecord, ATornOrForeignFileIsNoRank) {
  const TemporaryDirectory directory;
  VariablesEnv env({{launch_variable, directory.path()}});
  ASSERT_TRUE(env.replace_text(directory / "rank-00000", "{\"host\":\"a\",\"proc").ok());
  ASSERT_TRUE(env.replace_text(directory / "rank-00001", "{\"host\":7,\"process\":\"x\"}\n").ok());
  ASSERT_TRUE(env.replace_text(directory / "rank-many", "{}\n").ok());
  ASSERT_TRUE(env.replace_text(directory / "notes", "{\"process\":1}\n").ok());
  EXPECT_TRUE(read_launched_ranks(env, directory.path()).empty());
}

TEST(RunProgress, TheNewestStepOfTheLog) {
  const TemporaryDirectory directory;
  const RunPaths paths{directory.path()};
  EXPECT_EQ(newest_step(posix_env(), paths), 0u);
  std::string log = "{\"event\":\"start\"}\n";
  ASSERT_TRUE(posix_env().replace_text(paths.events(), log).ok());
  EXPECT_EQ(newest_step(posix_env(), paths), 0u);
  for (int step = 1; step <= 3000; ++step) log += fmt::format("{{\"event\":\"step\",\"step\":{}}}\n", step);
  log += "{\"event\":\"checkpoint\",\"step\":9}\n{\"event\":\"step\",\"st";
  ASSERT_TRUE(posix_env().replace_text(paths.events(), log).ok());
  EXPECT_EQ(newest_step(posix_env(), paths), 3000u);
}

TEST(RunProgress, WhatTheRunHasNotRecoveredFrom) {
  const std::vector<ReportedHang> reported = {{.time_us = 10, .rank = 1, .sentence = "rank 1 hangs"},
                                              {.time_us = 20, .rank = 2, .sentence = "rank 2 hangs"},
                                              {.time_us = 30, .rank = -1, .sentence = "all wait"}};
  EXPECT_EQ(hangs_at_end(reported, {}), "rank 1 hangs; rank 2 hangs; all wait");
  EXPECT_EQ(hangs_at_end(reported, {.step = 7, .time_us = 15}), "rank 2 hangs; all wait");
  EXPECT_EQ(hangs_at_end(reported, {.step = 9, .time_us = 40}), "") << "steps were made since";
  EXPECT_EQ(hangs_at_end({}, {}), "");
}

TEST(RunProgress, HowManyRanksWereLeft) {
  const TemporaryDirectory directory;
  const RunPaths paths{directory.path()};
  Env& env = posix_env();
  EXPECT_EQ(ranks_at_end(env, paths, 0), std::nullopt);
  std::string log;
  const auto write = [&](const std::string& line) {
    log += line + "\n";
    EXPECT_TRUE(env.replace_text(paths.events(), log).ok());
    return log.size();
  };
  const std::size_t first = write("{\"event\":\"fault\",\"level\":2}");
  EXPECT_EQ(ranks_at_end(env, paths, 0), std::nullopt) << "no start came so far";
  write("{\"event\":\"start\",\"ranks\":8}");
  EXPECT_THAT(ranks_at_end(env, paths, first), Optional(8));
  write("{\"event\":\"recovery\",\"level\":1,\"ranks_before\":8,\"ranks_after\":6}");
  for (int step = 1; step <= 5000; ++step) log += fmt::format("{{\"event\":\"step\",\"step\":{}}}\n", step);
  const std::size_t second = write("{\"event\":\"fault\",\"what\":\"rank\"}");
  EXPECT_THAT(ranks_at_end(env, paths, first), Optional(6)) << "it shrank long ago";
  EXPECT_EQ(ranks_at_end(env, paths, second), std::nullopt) << "the next start wrote nothing";
  write(
      "{\"event\":\"start\",\"ranks\":8}\n{\"event\":\"recovery\",\"level\":2,\"ranks_before\":6,"
      "\"ranks_after\":8}");
  EXPECT_THAT(ranks_at_end(env, paths, second), Optional(8));
  write("{\"event\":\"recovery\",\"level\":1,\"ranks_aft");  // torn
  EXPECT_THAT(ranks_at_end(env, paths, second), Optional(8));
}

TEST(RunProgress, WhereItsRanksAre) {
  const TemporaryDirectory directory;
  const RunPaths paths{directory.path()};
  Env& env = posix_env();
  std::string log = "{\"event\":\"start\",\"ranks\":3,\"hosts\":{\"a\":2,\"b\":1}}\n";
  EXPECT_FALSE(newest_ranks(env, paths, 0).has_value());
  ASSERT_TRUE(env.replace_text(paths.events(), log).ok());
  using Hosts = std::map<std::string, int>;
  const auto has = [](const Hosts& hosts, std::optional<int> spares) {
    return Optional(testing::AllOf(testing::Field(&RanksInLog::by_host, hosts),
                                   testing::Field(&RanksInLog::spares, spares)));
  };
  EXPECT_THAT(newest_ranks(env, paths, 0), has({{"a", 2}, {"b", 1}}, std::nullopt));
  EXPECT_FALSE(newest_ranks(env, paths, log.size()).has_value());
  log += "{\"event\":\"recovery\",\"level\":1,\"ranks_after\":2,\"spares\":1,\"hosts\":{\"a\":2}}\n";
  log += "{\"event\":\"recovery\",\"level\":2,\"ranks_after\":2}\n";
  log += "{\"event\":\"fault\",\"hosts\":\"all\"}\n";
  ASSERT_TRUE(env.replace_text(paths.events(), log).ok());
  EXPECT_THAT(newest_ranks(env, paths, 0), has({{"a", 2}}, 1));
}

std::unique_ptr<Process> sleeper(const std::string& start) {
  Result<std::unique_ptr<Process>> process =
      posix_env().processes().start({.arguments = {"sleep", "60"}, .variables = {{launch_variable, start}}});
  EXPECT_TRUE(process.ok());
  return std::move(process).value();
}

TEST(RunProcesses, EndsThoseOfTheStartAndNoOther) {
  const std::unique_ptr<Process> one = sleeper("/run/launch/one");
  const std::unique_ptr<Process> other = sleeper("/run/launch/one-more");
  EXPECT_EQ(processes_of_start(posix_env(), "/run/launch/one").size(), 1u);
  EXPECT_TRUE(processes_of_start(posix_env(), "/run/launch").empty());
  const std::int64_t begin_ns = posix_env().monotonic_ns();
  EXPECT_TRUE(end_processes_of_start(posix_env(), "/run/launch/one", 300));
  EXPECT_GE(posix_env().monotonic_ns() - begin_ns, 300'000'000) << "it had a chance to go by itself";
  EXPECT_TRUE(one->wait_ended(0));
  EXPECT_TRUE(one->end()->killed);
  EXPECT_FALSE(other->wait_ended(0));
  EXPECT_TRUE(end_processes_of_start(posix_env(), "/run/launch/one-more", 0));
  EXPECT_TRUE(other->end()->killed);
}

// The first thread of a process may be a zombie while others still end, on a busy machine for a long time.
TEST(RunProcesses, NoneThatEndsHoldsALockAnyMore) {
  const TemporaryDirectory directory;
  const std::string lock = directory / "lock";
  // Its first thread ends alone, and another one half a second later.
  const std::string program =
      "import ctypes, fcntl, os, sys, threading, time\n"
      "lock = open(sys.argv[1], 'w')\n"
      "fcntl.flock(lock, fcntl.LOCK_SH)\n"
      "threading.Thread(target=lambda: (time.sleep(0.5), os._exit(0))).start()\n"
      "ctypes.CDLL(None).syscall(93 if os.uname().machine == 'aarch64' else 60, 0)\n";
  const Result<std::unique_ptr<Process>> process = posix_env().processes().start(
      {.arguments = {"python3", "-c", program, lock}, .variables = {{launch_variable, "/run/launch/locks"}}});
  ASSERT_TRUE(process.ok());
  Processes& processes = posix_env().processes();
  const auto facts = [&] { return processes.facts((*process)->id()).value_or(ProcessFacts{}); };
  while (!facts().has_ended()) posix_env().sleep_us(1'000);
  EXPECT_TRUE(facts().is_ending);
  const os::Descriptor own = os::open_descriptor(lock, O_RDWR, 0600);
  EXPECT_NE(::flock(own.value(), LOCK_EX | LOCK_NB), 0) << "the other thread holds it";
  EXPECT_TRUE(end_processes_of_start(posix_env(), "/run/launch/locks", 0));
  EXPECT_EQ(::flock(own.value(), LOCK_EX | LOCK_NB), 0);
}

TEST(HostCommand, EndsWhatStartsWithTheTokenLeft) {
  const TemporaryDirectory directory;
  Env& env = posix_env();
  const RunPaths paths{directory.path()};
  ASSERT_TRUE(env.make_directories(paths.launch()).ok());
  const Result<std::string> token = launch_token(env, paths);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(*launch_token(env, paths), *token) << "the same for the next launcher";
  const std::unique_ptr<Process> mine = sleeper("/elsewhere/" + *token + "-0123456789abcdef");
  const std::unique_ptr<Process> other = sleeper(paths.launch() + "/fedcba9876543210-0123456789abcdef");
  const std::string scratch =
      env.make_shared_directory(launch_scratch_name(*token + "-0123456789abcdef")).value();
  EXPECT_EQ(*run_host_command(env, {"look", *token}, {}), 1);
  EXPECT_FALSE(mine->wait_ended(0));
  EXPECT_EQ(*run_host_command(env, {"clean", *token}, {}), 0);
  EXPECT_TRUE(mine->end()->killed);
  EXPECT_FALSE(env.status(scratch)->exists);
  EXPECT_EQ(*run_host_command(env, {"look", *token}, {}), 0);
  EXPECT_FALSE(other->wait_ended(0));
  EXPECT_TRUE(end_processes_of_starts(env, "fedcba9876543210", 0));
  EXPECT_TRUE(other->end()->killed);
}

// Else it would end the processes of the run that it is a copy of.
TEST(HostCommand, ACopyOfARunDirectoryHasATokenOfItsOwn) {
  const TemporaryDirectory directory;
  Env& env = posix_env();
  const RunPaths run{directory / "run"}, copy{directory / "copy"};
  ASSERT_TRUE(env.make_directories(run.launch()).ok());
  ASSERT_TRUE(record_identity(env, run, std::string(32, '1')).ok());
  const std::string token = launch_token(env, run).value();
  std::filesystem::copy(run.directory, copy.directory, std::filesystem::copy_options::recursive);
  EXPECT_NE(launch_token(env, copy).value(), token);
  EXPECT_EQ(launch_token(env, run).value(), token);
  ASSERT_TRUE(record_identity(env, copy, std::string(32, '2')).ok());
  EXPECT_EQ(launch_token(env, copy).value(), launch_token(env, copy).value());
}

TEST(HostCommand, TakesNothingForAToken) {
  for (const char* text : {"", "*", "../../etc", "0123456789abcde", "0123456789ABCDEF"}) {
    EXPECT_FALSE(run_host_command(posix_env(), {"clean", text}, {}).ok()) << text;
  }
  EXPECT_FALSE(run_host_command(posix_env(), {"burn", "0123456789abcdef"}, {}).ok());
}

TEST(HostCommand, TakesNothingForTheIdOfARun) {
  const std::string id(32, 'a');
  for (const std::string& bad :
       {std::string("run"), std::string("../../x"), id + ",x", id + ";true", std::string()}) {
    EXPECT_FALSE(run_host_command(posix_env(), {"finish", "0123456789abcdef", bad}, {}).ok()) << bad;
  }
  EXPECT_TRUE(run_host_command(posix_env(), {"finish", "0123456789abcdef", id + "," + id}, {}).ok());
}

// mpirun would be ended after five seconds in which no rank of this host is known to live; here a second is
// twenty of them.
TEST(Job, ARankThatCannotBeLookedAtMayLive) {
  class HurriedEnv final : public ForwardingEnv {
   public:
    using ForwardingEnv::ForwardingEnv;
    std::int64_t monotonic_ns() override { return inner().monotonic_ns() * 20; }
  };
  const TemporaryDirectory directory;
  BlindEnv blind(posix_env(), directory / "hidden");
  HurriedEnv env(blind);
  const std::string start = directory / "run/launch/0-1";
  ASSERT_TRUE(env.make_directories(start).ok());
  hide(directory / "hidden", env.process_id());
  ASSERT_TRUE(
      env.append_line(start + "/rank-00000", fmt::format("{{\"host\":\"x\",\"host_id\":\"{}\",\"process\":{},"
                                                         "\"started_ticks\":1}}",
                                                         env.host_id(), env.process_id()))
          .ok());
  const std::unique_ptr<SignalWatcher> signals = SignalWatcher::watch({SIGURG}).value();
  StopRequest stop(env, *signals, 60'000);
  Job job(env, stop,
          {.line = {.arguments = {"sleep", "1"}, .variables = {}},
           .ranks = 2,
           .paths = {directory / "run"},
           .directory = start,
           .lives_elsewhere = [] { return false; }});
  const Result<EndedStart> ended = job.run();
  ASSERT_TRUE(ended.ok()) << ended.error().message;
  EXPECT_THAT(ended->end.fault, testing::Not(testing::HasSubstr("no rank is left")));
}

testing::Matcher<HostAnswer> with_code(std::optional<int> code) {
  return testing::Field(&HostAnswer::code, code);
}

// ssh hands the words to a shell there, with blanks between them.
TEST(HostProbe, NoWordReachesAShellThatIsNotQuoted) {
  const TemporaryDirectory directory;
  const std::string agent = directory / "agent";
  ASSERT_TRUE(posix_env().replace_text(agent, "#!/bin/sh\nshift\nexec sh -c \"$*\"\n").ok());
  ASSERT_EQ(::chmod(agent.c_str(), 0755), 0);
  VariablesEnv env(std::map<std::string, std::string>{{"PRTE_MCA_plm_ssh_agent", agent}});
  const std::string made = directory / "made", reported = directory / "told";
  const std::vector<std::string> words = {"sh", "-c", "printf %s \"$1\" > " + reported, "sh",
                                          "x; touch " + made + " $(touch " + made + ") 'y"};
  const auto left_ms = [] { return std::int64_t{60'000}; };
  EXPECT_THAT(ask_hosts(env, {{.name = "there"}}, words, left_ms), ElementsAre(with_code(0)));
  EXPECT_EQ(env.read_text(reported).value(), words.back());
  EXPECT_FALSE(env.status(made)->exists);
  EXPECT_THAT(ask_hosts(env, {{.name = "-oProxyCommand=touch " + made}, {.name = "a;b"}}, {"true"}, left_ms),
              ElementsAre(with_code(std::nullopt), with_code(std::nullopt)));
}

TEST(HostProbe, AsksEachHostTheWayItsDaemonIsStarted) {
  const TemporaryDirectory directory;
  const std::string agent = directory / "agent";
  ASSERT_TRUE(
      posix_env()
          .replace_text(
              agent,
              "#!/bin/sh\ncase \"$*\" in '-x there do it') exit 3;; *slow*) sleep 60;; *) exit 255;; esac\n")
          .ok());
  ASSERT_EQ(::chmod(agent.c_str(), 0755), 0);
  VariablesEnv env({{"PRTE_MCA_plm_ssh_agent", agent + " -x : rsh"}});
  const std::vector<LaunchHost> hosts = {
      {.name = "there"}, {.name = "gone"}, {.name = "slow"}, {.name = env.host_name()}};
  const std::int64_t begin_ns = env.monotonic_ns();
  std::int64_t limit_ms = 1'000;
  const auto left_ms = [&] { return limit_ms - (env.monotonic_ns() - begin_ns) / 1'000'000; };
  EXPECT_THAT(ask_hosts(env, hosts, {"do", "it"}, left_ms),
              ElementsAre(with_code(3), with_code(std::nullopt), with_code(std::nullopt), with_code(0)));
  EXPECT_GE(env.monotonic_ns() - begin_ns, 1'000'000'000);
  EXPECT_LT(env.monotonic_ns() - begin_ns, 20'000'000'000);
  // The others have answered, so nobody waits for the one that says nothing; one that has said a word has the
  // time that it takes.
  limit_ms = 60'000'000;
  ASSERT_TRUE(
      posix_env()
          .replace_text(agent,
                        "#!/bin/sh\ncase \"$*\" in *there*) exit 3;; *busy*) echo here; sleep 3; exit 4;; "
                        "*) sleep 600;; esac\n")
          .ok());
  ASSERT_EQ(::chmod(agent.c_str(), 0755), 0);
  EXPECT_THAT(ask_hosts(env, {{.name = "there"}, {.name = "busy"}, {.name = "slow"}}, {"do", "it"}, left_ms),
              ElementsAre(with_code(3), with_code(4), with_code(std::nullopt)));
  int asked = 0;  // somebody is in a hurry meanwhile
  const std::int64_t hurry_ns = env.monotonic_ns();
  EXPECT_THAT(ask_hosts(env, {{.name = "slow"}}, {"do", "it"}, [&] { return ++asked < 5 ? left_ms() : 0; }),
              ElementsAre(with_code(std::nullopt)));
  EXPECT_EQ(asked, 5);
  EXPECT_LT(env.monotonic_ns() - hurry_ns, 20'000'000'000);
  VariablesEnv without(std::map<std::string, std::string>{{"PRTE_MCA_plm_ssh_agent", "/no/such/agent"}});
  EXPECT_THAT(
      ask_hosts(without, hosts, {"do", "it"}, left_ms),
      ElementsAre(with_code(std::nullopt), with_code(std::nullopt), with_code(std::nullopt), with_code(0)));
}

// A host may be another user's, and a login prints what it likes.
TEST(HostProbe, AnswersHoldTheEndOfWhatWasPrinted) {
  const TemporaryDirectory directory;
  const std::string agent = directory / "agent";
  ASSERT_TRUE(posix_env()
                  .replace_text(
                      agent,
                      "#!/bin/sh\ncase \"$*\" in\n"
                      "*there*) echo here; echo 'holdfast: the data file /x/y is empty' >&2; echo; exit 4;;\n"
                      "*long*) seq 100000; echo 'the last one';;\n"
                      "*rude*) printf 'a\\033[2Jb\\r\\n \\n';;\n"
                      "*gone*) echo 'ssh: no route to host' >&2; exit 255;;\nesac\n")
                  .ok());
  ASSERT_EQ(::chmod(agent.c_str(), 0755), 0);
  VariablesEnv env({{"PRTE_MCA_plm_ssh_agent", agent}, {"TMPDIR", directory / ""}});
  const std::vector<LaunchHost> hosts = {{.name = "there"}, {.name = "long"}, {.name = "rude"},
                                         {.name = "gone"},  {.name = "a;b"},  {.name = env.host_name()}};
  const std::vector<HostAnswer> answers = ask_hosts(env, hosts, {"do"}, [] { return std::int64_t{60'000}; });
  ASSERT_EQ(answers.size(), hosts.size());
  EXPECT_THAT(answers[0], with_code(4));
  EXPECT_EQ(answers[0].output, "here\nholdfast: the data file /x/y is empty\n\n");
  EXPECT_EQ(answers[0].last_line(), "the data file /x/y is empty");
  EXPECT_EQ(answers[1].output.size(), HostAnswer::output_bytes);
  EXPECT_EQ(answers[1].last_line(), "the last one");
  EXPECT_EQ(answers[2].last_line(), "a\\x1b[2Jb\\x0d");
  EXPECT_THAT(answers[3], with_code(std::nullopt));
  EXPECT_EQ(answers[3].last_line(), "ssh: no route to host");
  EXPECT_EQ(answers[4].output + answers[4].last_line() + answers[5].output, "");
  EXPECT_EQ(env.list(directory / "").value(), std::vector<std::string>{"agent"}) << "files are left";
}

// Tests which time of a loop counts as having been stopped.

TEST(TickClock, CountsNoTimeOfItsOwnLooks) {
  constexpr std::int64_t second_ns = 1'000'000'000;
  TickClock clock(2'000, 0);
  for (std::int64_t now_s = 0; now_s < 60; now_s += 5) {
    EXPECT_FALSE(clock.is_late((now_s + 1) * second_ns)) << "the look before took four seconds";
    clock.end_tick((now_s + 5) * second_ns);
  }
  EXPECT_TRUE(clock.is_late(70 * second_ns)) << "it was stopped";
}

}  // namespace

}  // namespace holdfast::test
