// What Processes promises, of the real operating system.
#include "runtime/os/processes.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <thread>

#include "runtime/os/env.h"
#include "runtime/os/process_identity.h"
#include "tests/support/leave.h"
#include "tests/support/refused_pidfd.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

constexpr std::int64_t soon_ms = 20'000;

std::unique_ptr<Process> start(const ProcessStart& start) {
  Result<std::unique_ptr<Process>> process = posix_env().processes().start(start);
  EXPECT_TRUE(process.ok()) << process.error().message;
  return std::move(process).value();
}
ProcessStart shell(const std::string& line) {
  return {.arguments = {"sh", "-c", line}};
}
ProcessEnd end_of(Process& process) {
  EXPECT_TRUE(process.wait_ended(soon_ms));
  const std::optional<ProcessEnd> end = process.end();
  EXPECT_TRUE(end.has_value());
  return end.value_or(ProcessEnd{});
}
// The text of the file when it has become so; what it is in the end otherwise.
std::string text_of(const std::string& path, const std::string& wanted) {
  std::string text;
  for (int tries = 0; tries < 2000 && text != wanted; ++tries) {
    posix_env().sleep_us(10'000);
    const Result<std::string> read = posix_env().read_text(path);
    if (read.ok()) text = *read;
  }
  return text;
}
std::string output_of(ProcessStart what) {
  const TemporaryDirectory directory;
  what.output = directory / "output";
  end_of(*start(what));
  const Result<std::string> text = posix_env().read_text(what.output);
  EXPECT_TRUE(text.ok());
  return *text;
}
// A process whose first line of output says that it has come this far.
std::unique_ptr<Process> start_and_wait_for_line(ProcessStart what, const TemporaryDirectory& directory) {
  what.output = directory / "ready";
  std::unique_ptr<Process> process = start(what);
  EXPECT_EQ(text_of(what.output, "ready\n"), "ready\n");
  return process;
}

TEST(Processes, EndsWithItsExitCode) {
  const std::unique_ptr<Process> process = start(shell("exit 7"));
  const ProcessEnd end = end_of(*process);
  EXPECT_FALSE(end.killed);
  EXPECT_EQ(end.code, 7);
  EXPECT_EQ(process->end()->code, 7) << "asked twice";
  EXPECT_TRUE(process->signal(SIGKILL).ok()) << "after the end";
}

TEST(Processes, SaysWhichSignalKilledIt) {
  const std::unique_ptr<Process> process = start({.arguments = {"sleep", "60"}});
  EXPECT_FALSE(process->wait_ended(50));
  EXPECT_FALSE(process->end().has_value());
  ASSERT_TRUE(process->signal(SIGKILL).ok());
  const ProcessEnd end = end_of(*process);
  EXPECT_TRUE(end.killed);
  EXPECT_EQ(end.code, SIGKILL);
}

// Returns whether this kernel still tells how a process ended when it has been reaped.
bool tells_of_reaped() {
  utsname system = {};
  int major = 0, minor = 0;
  return uname(&system) == 0 && std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
         (major > 6 || (major == 6 && minor >= 15));
}

TEST(Processes, HowAProcessEndedIsSeenWithoutReapingIt) {
  struct Case {
    const char* line;
    ProcessEnd end;
  };
  for (const Case& each : {Case{"kill -KILL $$", {.killed = true, .code = SIGKILL}},
                           Case{"kill -SEGV $$", {.killed = true, .code = SIGSEGV}},
                           Case{"exit 3", {.killed = false, .code = 3}}}) {
    const std::unique_ptr<Process> parent = start(shell(std::string("sleep 0.2; ") + each.line));
    const std::unique_ptr<Process> other = posix_env().processes().find(parent->id()).value();
    EXPECT_EQ(other->observed_end(), std::nullopt) << "it lives";
    ASSERT_TRUE(other->wait_ended(soon_ms));
    EXPECT_EQ(other->observed_end(), each.end) << each.line;
    EXPECT_EQ(other->observed_end(), each.end) << "again, because it is still there";
    EXPECT_EQ(end_of(*parent), each.end);
    EXPECT_EQ(parent->observed_end(), each.end);
    EXPECT_EQ(other->observed_end(), tells_of_reaped() ? std::optional(each.end) : std::nullopt);
  }
}

TEST(Processes, HowItEndedIsSeenWhileItsParentReapsIt) {
  if (!tells_of_reaped()) GTEST_SKIP() << "this kernel forgets it when the process is reaped";
  for (int round = 0; round < 300; ++round) {
    const std::unique_ptr<Process> child = start({.arguments = {"sleep", "60"}});
    const std::unique_ptr<Process> other = posix_env().processes().find(child->id()).value();
    std::thread parent([&] { ::waitpid(static_cast<pid_t>(child->id()), nullptr, 0); });
    EXPECT_TRUE(other->signal(SIGKILL).ok());
    EXPECT_TRUE(other->wait_ended(soon_ms));
    const ProcessEnd killed = {.killed = true, .code = SIGKILL};
    EXPECT_EQ(other->observed_end(), killed) << "round " << round;
    parent.join();
  }
}

TEST(Processes, NamesTheWayAProcessEnded) {
  EXPECT_EQ(os::text_of({.killed = true, .code = SIGKILL}), "signal 9 (SIGKILL)");
  EXPECT_EQ(os::text_of({.killed = true, .code = SIGSEGV}), "signal 11 (SIGSEGV)");
  EXPECT_EQ(os::text_of({.killed = true, .code = SIGRTMIN + 1}), fmt::format("signal {}", SIGRTMIN + 1));
  EXPECT_EQ(os::text_of({.killed = false, .code = 3}), "exit code 3");
}

TEST(Processes, AProgramThatIsNotThereIsASentence) {
  const auto process = posix_env().processes().start({.arguments = {"no-such-program"}});
  ASSERT_FALSE(process.ok());
  EXPECT_EQ(process.error().code, ExitCode::communication);
  EXPECT_NE(process.error().message.find("cannot start no-such-program: "), std::string::npos)
      << process.error().message;
  const auto orphan = posix_env().processes().start({.arguments = {"no-such-program"}, .orphan = true});
  EXPECT_FALSE(orphan.ok());
}

TEST(Processes, AnOutputThatCannotBeOpenedIsASentence) {
  const auto process =
      posix_env().processes().start({.arguments = {"true"}, .output = "/no/such/directory/output"});
  ASSERT_FALSE(process.ok());
  EXPECT_NE(process.error().message.find("/no/such/directory/output"), std::string::npos);
}

TEST(Processes, HasTheVariablesAndTheRestOfTheEnvironment) {
  ProcessStart what = shell(R"(echo "$HOME|$PATH|$NEW")");
  what.variables = {{"HOME", "/h"}, {"NEW", "a b"}};
  EXPECT_EQ(output_of(what), "/h|" + posix_env().variable("PATH") + "|a b\n");
  EXPECT_EQ(posix_env().variable("NEW"), "");
}

TEST(Processes, BothStreamsAreAppendedToTheOutput) {
  const TemporaryDirectory directory;
  const std::string path = directory / "output";
  for (const char* line : {"echo one", "echo two >&2"}) {
    ProcessStart what = shell(line);
    what.output = path;
    end_of(*start(what));
  }
  EXPECT_EQ(*posix_env().read_text(path), "one\ntwo\n");
}

TEST(Processes, ReadsNothingOfThisProcess) {
  EXPECT_EQ(output_of(shell("cat; echo end")), "end\n");
}

TEST(Processes, InheritsNoOtherFile) {
  const int unmarked = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  ASSERT_GE(unmarked, 0);
  EXPECT_EQ(output_of(shell(fmt::format("test -e /proc/self/fd/{} && echo there || echo gone", unmarked))),
            "gone\n");
  ::close(unmarked);
}

TEST(Processes, SignalsAreAsAProgramExpectsThem) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  for (const int number : {SIGUSR2, SIGTERM, SIGINT}) sigaddset(&blocked, number);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const auto ignored = std::signal(SIGPIPE, SIG_IGN);
  const std::string masks = output_of({.arguments = {"grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"}});
  std::signal(SIGPIPE, ignored);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(masks, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST(Processes, ASignalReachesTheWholeGroup) {
  const TemporaryDirectory directory;
  ProcessStart what = shell("sleep 60 & echo ready; wait");
  what.own_session = true;
  const std::unique_ptr<Process> process = start_and_wait_for_line(what, directory);
  Processes& processes = posix_env().processes();
  std::int64_t sleeper = 0;
  for (const std::int64_t id : processes.list()) {
    const std::optional<ProcessFacts> facts = processes.facts(id);
    if (facts.has_value() && facts->parent == process->id()) sleeper = id;
  }
  Result<std::unique_ptr<Process>> found = processes.find(sleeper);
  ASSERT_TRUE(found.ok() && *found != nullptr);
  ASSERT_TRUE(process->signal_group(SIGKILL).ok());
  EXPECT_TRUE((*found)->wait_ended(soon_ms));
  EXPECT_TRUE(end_of(*process).killed);
}

TEST(Processes, AnOrphanIsNoChild) {
  const TemporaryDirectory directory;
  ProcessStart what = shell("echo ready; sleep 60");
  what.orphan = what.own_session = true;
  const std::unique_ptr<Process> process = start_and_wait_for_line(what, directory);
  const std::optional<ProcessFacts> facts = posix_env().processes().facts(process->id());
  ASSERT_TRUE(facts.has_value());
  EXPECT_NE(facts->parent, getpid());
  ASSERT_TRUE(process->signal_group(SIGKILL).ok());
  EXPECT_TRUE(process->wait_ended(soon_ms));
  EXPECT_FALSE(process->end().has_value());
}

TEST(Processes, DiesWithTheThreadThatStartedIt) {
  std::unique_ptr<Process> process;
  std::thread([&] {
    process = start({.arguments = {"sleep", "60"}, .die_with_parent = true});
    EXPECT_FALSE(process->wait_ended(100));
  }).join();
  const ProcessEnd end = end_of(*process);
  EXPECT_TRUE(end.killed);
  EXPECT_EQ(end.code, SIGKILL);
}

TEST(Processes, FindsAProcessThatEndsAndNeverAnother) {
  Processes& processes = posix_env().processes();
  const std::unique_ptr<Process> child = start({.arguments = {"sleep", "60"}});
  Result<std::unique_ptr<Process>> found = processes.find(child->id());
  ASSERT_TRUE(found.ok() && *found != nullptr);
  EXPECT_FALSE((*found)->wait_ended(0));
  ASSERT_TRUE((*found)->signal(SIGKILL).ok());
  EXPECT_TRUE((*found)->wait_ended(soon_ms)) << "before anybody reaps it";
  end_of(*child);
  EXPECT_TRUE((*found)->wait_ended(0));
  Result<std::unique_ptr<Process>> again = processes.find(child->id());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, nullptr);
  EXPECT_FALSE(processes.facts(child->id()).has_value());
}

TEST(Processes, ThereIsNoSuchProcess) {
  for (const std::int64_t id : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 40}) {
    Result<std::unique_ptr<Process>> found = posix_env().processes().find(id);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, nullptr);
    EXPECT_FALSE(posix_env().processes().facts(id).has_value());
  }
}

TEST(ProcessIdentity, OpensTheProcessItNamesAndNoOtherOfItsNumber) {
  Processes& processes = posix_env().processes();
  Result<std::unique_ptr<Process>> child = processes.start({.arguments = {"sleep", "60"}});
  ASSERT_TRUE(child.ok()) << child.error().message;
  const ProcessIdentity named = ProcessIdentity::of(processes, (*child)->id());
  EXPECT_EQ(named, ProcessIdentity::of(processes, (*child)->id()));
  const ProcessIdentity before = {.id = named.id, .started_ticks = named.started_ticks - 1};
  EXPECT_NE(named, before);
  const Result<std::unique_ptr<Process>> other = before.open(processes);
  ASSERT_TRUE(other.ok()) << other.error().message;
  EXPECT_EQ(*other, nullptr);
  EXPECT_TRUE(before.has_ended(processes));
  EXPECT_FALSE(named.has_ended(processes));
  const Result<std::unique_ptr<Process>> same = named.open(processes);
  ASSERT_TRUE(same.ok() && *same != nullptr);
  ASSERT_TRUE((*same)->signal(SIGKILL).ok());
  EXPECT_TRUE((*same)->wait_ended(10'000));
  EXPECT_TRUE(named.has_ended(processes)) << "though nobody has reaped it";
  EXPECT_TRUE((*child)->end().has_value());
  const Result<std::unique_ptr<Process>> gone = named.open(processes);
  EXPECT_TRUE(gone.ok() && *gone == nullptr);
  EXPECT_EQ(ProcessIdentity::of(processes, 0), ProcessIdentity());
}

// In a process of its own, which ends with 0 if `holds` does.
bool holds_in_another_process(const std::function<bool()>& holds) {
  const pid_t child = fork();
  if (child == 0) test::leave(holds() ? 0 : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

TEST(Processes, WithoutDescriptorsNobodyIsSaidToHaveEnded) {
  Processes& processes = posix_env().processes();
  const ProcessIdentity self = ProcessIdentity::of(processes, getpid());
  EXPECT_TRUE(holds_in_another_process([&] {
    const rlimit none = {.rlim_cur = 0, .rlim_max = 0};
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) return false;
    return !self.has_ended(processes) && !processes.look(getppid()).ok() && !processes.find(getppid()).ok();
  }));
}

TEST(Processes, WithoutPidfdAHandleGoesByNumberAndStart) {
  EXPECT_TRUE(holds_in_another_process([] {
    test::refuse_pidfd();
    Processes& processes = posix_env().processes();
    Result<std::unique_ptr<Process>> child = processes.start({.arguments = {"sleep", "60"}});
    if (!child.ok()) return false;
    Result<std::unique_ptr<Process>> found = processes.find((*child)->id());
    if (!found.ok() || *found == nullptr) return false;
    Process* const process = found->get();
    bool holds = !process->wait_ended(0) && !processes.wait_any_ended({&process, 1}, 20);
    holds = holds && process->signal(SIGKILL).ok() && process->wait_ended(soon_ms);
    holds = holds && processes.wait_any_ended({&process, 1}, soon_ms);
    const ProcessEnd killed = {.killed = true, .code = SIGKILL};
    holds = holds && process->observed_end() == killed;
    const std::optional<ProcessEnd> end = (*child)->end();
    holds = holds && !process->observed_end().has_value();
    holds = holds && end.has_value() && end->killed && end->code == SIGKILL;
    Result<std::unique_ptr<Process>> again = processes.find(process->id());
    return holds && process->signal(SIGKILL).ok() && again.ok() && *again == nullptr;
  }));
}

TEST(Processes, TheNamespaceIsThatOfThisProcess) {
  Processes& processes = posix_env().processes();
  EXPECT_EQ(processes.own_namespace().rfind("pid:[", 0), 0u) << processes.own_namespace();
  EXPECT_TRUE(holds_in_another_process(
      [name = processes.own_namespace()] { return posix_env().processes().own_namespace() == name; }));
}

TEST(Processes, FactsAreThoseOfProc) {
  Processes& processes = posix_env().processes();
  const std::unique_ptr<Process> child = start({.arguments = {"sleep", "60"}});
  const std::optional<ProcessFacts> own = processes.facts(getpid());
  std::optional<ProcessFacts> facts = processes.facts(child->id());
  ASSERT_TRUE(own.has_value() && facts.has_value());
  EXPECT_EQ(own->parent, getppid());
  EXPECT_EQ(facts->parent, getpid());
  EXPECT_GE(facts->started_ticks, own->started_ticks);
  EXPECT_GT(own->minor_faults, 0u);
  EXPECT_GT(own->resident_bytes, 1u << 20);
  EXPECT_LT(own->resident_bytes, std::uint64_t{1} << 40);
  ASSERT_TRUE(child->signal(SIGSTOP).ok());
  for (int tries = 0; tries < 2000 && facts->state != 'T'; ++tries) {
    posix_env().sleep_us(10'000);
    facts = processes.facts(child->id());
  }
  EXPECT_EQ(facts->state, 'T');
  ASSERT_TRUE(child->signal(SIGKILL).ok());
  ASSERT_TRUE(child->wait_ended(soon_ms));
  EXPECT_EQ(processes.facts(child->id())->state, 'Z');
  EXPECT_FALSE(processes.facts(child->id())->is_ending) << "its last thread has ended";
  EXPECT_FALSE(own->is_ending);
  end_of(*child);
}

// Reads /proc in the order of those who look for a process by its variables. start() may return while the
// child still has the memory and the variables of this process, and before the kernel has laid out those of
// the new program: on a busy machine one start in ten is seen so.
TEST(Processes, FactsSayWhoIsBecomingAnotherProgram) {
  Processes& processes = posix_env().processes();
  int seen = 0;
  for (int starts = 0; starts < 500; ++starts) {
    const std::unique_ptr<Process> child =
        start({.arguments = {"sleep", "60"}, .variables = {{"OF", "the child"}}});
    const auto variables = [&] {
      return posix_env().read_text(fmt::format("/proc/{}/environ", child->id())).value();
    };
    const auto is_laid_out = [&] { return variables().find("OF=the child") != std::string::npos; };
    for (int looks = 0; looks < 2000 && !is_laid_out(); ++looks) {
      if (!variables().empty()) continue;
      const std::optional<ProcessFacts> facts = processes.facts(child->id());
      ASSERT_TRUE(facts.has_value());
      EXPECT_TRUE(facts->becomes_another_program || is_laid_out());
      if (!facts->becomes_another_program) break;
      ++seen;
      posix_env().sleep_us(1'000);
    }
    EXPECT_TRUE(is_laid_out());
    EXPECT_FALSE(processes.facts(child->id()).value_or(ProcessFacts{}).becomes_another_program);
    ASSERT_TRUE(child->signal(SIGKILL).ok());
    end_of(*child);
    EXPECT_FALSE(processes.facts(child->id()).value_or(ProcessFacts{}).becomes_another_program);
  }
  RecordProperty("seen", seen);
}

TEST(Processes, ANameCannotMisleadTheFacts) {
  const TemporaryDirectory directory;
  const std::string program = directory / "a) R 1 (";
  ASSERT_EQ(::symlink("/bin/sleep", program.c_str()), 0);
  const std::unique_ptr<Process> child = start({.arguments = {program, "60"}});
  EXPECT_EQ(posix_env().processes().facts(child->id())->parent, getpid());
  ASSERT_TRUE(child->signal(SIGKILL).ok());
  end_of(*child);
}

TEST(Processes, WaitsForTheFirstOfSeveral) {
  Processes& processes = posix_env().processes();
  const std::unique_ptr<Process> slow = start({.arguments = {"sleep", "60"}});
  const std::unique_ptr<Process> quick = start(shell("sleep 1"));
  const std::array<Process*, 2> both = {slow.get(), quick.get()};
  EXPECT_FALSE(processes.wait_any_ended(both, 0));
  EXPECT_TRUE(processes.wait_any_ended(both, soon_ms));
  EXPECT_TRUE(quick->wait_ended(0));
  EXPECT_FALSE(slow->wait_ended(0));
  EXPECT_FALSE(processes.wait_any_ended(std::array<Process*, 1>{slow.get()}, 50));
  EXPECT_FALSE(processes.wait_any_ended({}, 1));
  ASSERT_TRUE(slow->signal(SIGKILL).ok());
  end_of(*slow);
}

// In a process of its own, because a process cannot take it back.
TEST(ProcessesDeathTest, ReapsWhatCameToItWhenItsParentEnded) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto adopt = [] {
    Processes& processes = posix_env().processes();
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return 1;  // as process 1 is by nature
    const std::unique_ptr<Process> child = start(shell("(sleep 0.5; exit 9) & exit 0"));
    if (end_of(*child).code != 0) return 2;
    for (const std::int64_t id : processes.list()) {
      const std::optional<ProcessFacts> facts = processes.facts(id);
      if (!facts.has_value() || facts->parent != getpid()) continue;
      Result<std::unique_ptr<Process>> adopted = processes.find(id);
      if (!adopted.ok() || *adopted == nullptr || !(*adopted)->wait_ended(soon_ms)) return 3;
      const std::optional<ProcessEnd> end = (*adopted)->end();
      return end.has_value() && !end->killed ? end->code : 4;
    }
    return 5;
  };
  EXPECT_EXIT(_exit(adopt()), testing::ExitedWithCode(9), "");
}

TEST(Processes, MayHaveAllDescriptorsThatTheHardLimitPermits) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {.rlim_cur = 64, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  raise_descriptor_limit();
  rlimit now = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, before.rlim_max);
  EXPECT_EQ(now.rlim_max, before.rlim_max);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace holdfast::test
