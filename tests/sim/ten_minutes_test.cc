// Ten minutes of what runs beside training, in milliseconds: units of watchdog, run, save, parallel/group, launch
// and elastic on a clock and with threads that the test chooses (tests/support/simulated_env.h). Whatever waits
// around Env would make such a test hang, or last ten minutes.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "parallel/group/membership.h"
#include "runtime/launch/host_probe.h"
#include "runtime/os/background_job.h"
#include "runtime/os/processes.h"
#include "runtime/rank/watch.h"
#include "runtime/run/claim.h"
#include "runtime/run/preemption_notice.h"
#include "runtime/run/requests.h"
#include "runtime/save/uploads.h"
#include "tests/elastic/recovery_fixture.h"
#include "tests/support/local_world.h"
#include "tests/support/memory_env.h"
#include "tests/support/simulated_env.h"
#include "tests/watchdog/guard_mind_host.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::Optional;

constexpr std::int64_t second_us = 1'000'000, minute_s = 60;

// A host whose files are in memory, and whose commands and processes do what the test says.
class SimulatedHost final : public SimulatedEnv {
 public:
  explicit SimulatedHost(Env& files) : SimulatedEnv(files), processes_(*this) {}

  struct Answer {
    std::int64_t after_s = 0;
    int code = 0;
  };
  std::function<Answer(const Command&)> on_command = {};
  std::map<std::string, Answer> answers = {};  // of hosts that are asked; others are silent

  std::string host_name() override { return "here"; }
  std::string variable(const std::string&) override { return ""; }
  Result<CommandEnd> run_command(const Command& command) override {
    const Answer answer = on_command(command);
    const std::int64_t begin_s = now_s();
    while (now_s() < begin_s + answer.after_s) {
      if (command.cancelled != nullptr && *command.cancelled)
        return CommandEnd{.how = CommandEnd::How::cancelled};
      if ((now_s() - begin_s) * 1'000 >= command.timeout_ms)
        return CommandEnd{.how = CommandEnd::How::timed_out};
      sleep_us(second_us / 10);
    }
    return CommandEnd{.code = answer.code, .output = "no route to host\n"};
  }
  Processes& processes() override { return processes_; }

 private:
  class AskedProcess final : public Process {
   public:
    AskedProcess(SimulatedHost& host, std::optional<Answer> answer)
        : host_(&host), answer_(answer), begin_s_(host.now_s()) {}
    std::int64_t id() const override { return 1; }
    bool wait_ended(std::int64_t timeout_ms) override {
      host_->sleep_us(timeout_ms * 1'000);
      return killed_ || (answer_.has_value() && host_->now_s() >= begin_s_ + answer_->after_s);
    }
    std::optional<ProcessEnd> end() override {
      if (!wait_ended(0)) return std::nullopt;
      return ProcessEnd{.killed = killed_, .code = killed_ ? 9 : answer_->code};
    }
    std::optional<ProcessEnd> observed_end() override { return end(); }
    Result<void> signal(int) override {
      killed_ = true;
      return {};
    }
    Result<void> signal_group(int number) override { return signal(number); }

   private:
    SimulatedHost* host_;
    std::optional<Answer> answer_;
    std::int64_t begin_s_;
    bool killed_ = false;
  };

  class AskedProcesses final : public Processes {
   public:
    explicit AskedProcesses(SimulatedHost& host) : host_(&host) {}
    // The words are those of ssh: options, the host, what it shall run.
    Result<std::unique_ptr<Process>> start(const ProcessStart& start) override {
      std::optional<Answer> answer;
      for (const std::string& word : start.arguments) {
        if (const auto found = host_->answers.find(word); found != host_->answers.end())
          answer = found->second;
      }
      return std::unique_ptr<Process>(std::make_unique<AskedProcess>(*host_, answer));
    }
    Result<std::unique_ptr<Process>> find(std::int64_t) override { return std::unique_ptr<Process>(); }
    Result<std::optional<ProcessFacts>> look(std::int64_t) override { return std::optional<ProcessFacts>(); }
    std::vector<std::int64_t> list() override { return {}; }
    std::string own_namespace() override { return "simulated"; }
    bool wait_any_ended(std::span<Process* const>, std::int64_t timeout_ms) override {
      host_->sleep_us(timeout_ms * 1'000);
      return false;
    }

   private:
    SimulatedHost* host_;
  };

  AskedProcesses processes_;
};

class TenMinutes : public testing::Test {
 protected:
  TenMinutes() { files_.put_directory(paths_.directory); }
  ~TenMinutes() override { EXPECT_LT(env_.now_s(), 20 * minute_s); }

  // Runs the function until this second, once a second.
  void every_second_until(std::int64_t end_s, const std::function<void()>& work) {
    while (env_.now_s() < end_s) {
      work();
      env_.sleep_us(second_us);
    }
  }
  std::unique_ptr<Thread> beside(const std::string& name, std::function<void()> work) {
    return env_.start_thread(name, std::move(work)).value();
  }

  MemoryEnv files_;
  SimulatedHost env_{files_};
  RunPaths paths_{"/runs/one"};
};

// A rank hangs in the sixth minute, and is ended ten seconds later, when its deadline is over.
TEST_F(TenMinutes, TheGuardEndsTheRankThatHangs) {
  MindHost host(3);
  const auto guard = beside("guard", [&] {
    for (; env_.now_s() < 10 * minute_s; env_.sleep_us(tick_ms * 1'000)) host.tick();
  });
  every_second_until(10 * minute_s, [&] {
    for (const int rank : {0, 1, 2}) {
      const bool hangs = rank == 1 && env_.now_s() >= 5 * minute_s;
      if (!hangs) host.computes(rank, 10'000);
    }
  });
  guard->wait();
  EXPECT_THAT(host.killed(), ElementsAre(1));
  EXPECT_NEAR(static_cast<double>(host.killed_ms(1)), 309'000.0, 1'500.0);
}

TEST_F(TenMinutes, AClaimIsRenewedEveryTwoSecondsAndNotAfterItsEnd) {
  const auto in_use = [](const std::string& holder) { return fail(ExitCode::communication, "{}", holder); };
  const auto renewals = [&] { return claim_record_of(files_.read_text(paths_.lock()).value()).renewals; };
  std::unique_ptr<Claim> claim = Claim::take(env_, paths_.lock(), in_use).value();
  every_second_until(10 * minute_s, [&] { EXPECT_TRUE(claim->check().ok()); });
  const std::uint64_t renewed = renewals();
  EXPECT_THAT(renewed, testing::AllOf(testing::Ge(298U), testing::Le(300U)));
  claim.reset();
  env_.sleep_us(minute_s * second_us);
  EXPECT_EQ(renewals(), renewed);
  EXPECT_EQ(env_.threads_started(), 1);
}

// The cloud says in the tenth minute that it takes the machine, by a command that is asked every ten seconds; nobody
// can move the run.
TEST_F(TenMinutes, APreemptionNoticeStopsTheRun) {
  int asked = 0;
  env_.on_command = [&](const Command&) {
    ++asked;
    return SimulatedHost::Answer{.after_s = 1, .code = env_.now_s() < 9 * minute_s ? 1 : 0};
  };
  PreemptionNotice::Settings settings{.looks = true, .has_launcher = false};
  settings.config.notice_every_ms = 10'000;
  settings.config.notice_command = "ask the cloud";
  PreemptionNotice notice(env_, paths_, settings);
  every_second_until(9 * minute_s, [&] { EXPECT_FALSE(notice.stops()); });
  env_.sleep_us(12 * second_us);
  EXPECT_TRUE(notice.stops());
  EXPECT_NEAR(asked, 50, 2);
}

TEST_F(TenMinutes, WithoutAThreadASignalStopsTheRunAtOnce) {
  env_.refuse_threads();
  PreemptionNotice notice(env_, paths_, {.has_launcher = true});
  EXPECT_FALSE(notice.stops());
  notice.signalled();
  EXPECT_TRUE(notice.stops());
}

TEST_F(TenMinutes, WhoAsksForASaveIsAnswered) {
  const std::unique_ptr<SaveRequests> requests = SaveRequests::begin(env_, paths_).value();
  std::int64_t answered_s = 0;
  const auto user = beside("user", [&] {
    env_.sleep_us(3 * minute_s * second_us);
    const std::string path = request_save(env_, paths_, RequestKind::attended).value();
    while (read_save_answer(env_, path).state != SaveAnswer::State::saved) env_.sleep_us(second_us / 10);
    answered_s = env_.now_s();
  });
  std::uint64_t step = 0;
  bool saves = false;
  every_second_until(10 * minute_s, [&] {
    if (std::exchange(saves, false)) requests->ended(step, {});
    ++step;
    if (!requests->waiting()) return;
    requests->begun(step);
    saves = true;
  });
  user->wait();
  EXPECT_NEAR(static_cast<double>(answered_s), 182.0, 1.5);
}

// The network is away for five minutes: the upload is tried again, and what was saved meanwhile waits.
TEST_F(TenMinutes, AnUploadIsTriedAgainUntilTheNetworkIsBack) {
  FaultPoints faults;
  CheckpointStore store(env_, faults, paths_.directory);
  const auto publish = [&](std::uint64_t step) {
    Manifest manifest;
    manifest.run_id = std::string(32, 'a');
    manifest.step = step;
    ASSERT_TRUE(store.begin_save(step).ok());
    ASSERT_TRUE(store.publish(manifest).ok());
  };
  env_.on_command = [&](const Command&) {
    return SimulatedHost::Answer{.after_s = 20, .code = env_.now_s() < 5 * minute_s ? 1 : 0};
  };
  Config config;
  config.run.directory = paths_.directory;
  config.checkpoint.upload_command = "upload";
  config.checkpoint.upload_timeout_ms = 60'000;
  Uploads uploads({.env = env_,
                   .faults = faults,
                   .store = store,
                   .config = config,
                   .retry_after_ms = {60'000, 120'000, 240'000}});
  const std::vector<std::unique_ptr<Communicator>> alone = make_local_communicators(1);
  const Waiter waiter(env_, 20'000);
  for (std::uint64_t step = 1; step <= 10; ++step) {
    publish(step);
    uploads.offer(step);
    every_second_until(static_cast<std::int64_t>(step) * minute_s, [&] {
      SaveVotes votes;
      uploads.vote(votes);
      ASSERT_TRUE(uploads.advance(*alone.front(), waiter, votes).ok());
    });
  }
  uploads.cancel();
  ASSERT_TRUE(uploads.finish(*alone.front(), waiter, [] {}).ok());
  const std::vector<UploadReport> reports = uploads.take_reports();
  ASSERT_GE(reports.size(), 3U);
  EXPECT_EQ(reports[0].step, 1U);
  EXPECT_TRUE(reports[0].outcome.ok());
  EXPECT_EQ(reports[0].attempts, 4);
  EXPECT_NEAR(static_cast<double>(reports[0].duration_ns) * 1e-9, 20 + 60 + 20 + 120 + 20 + 240 + 20, 3.0);
  EXPECT_EQ(reports[1].step, 9U) << "only the newest that was saved meanwhile";
  EXPECT_TRUE(reports[1].outcome.ok());
}

// One of four ranks dies in the fifth minute, another hangs in the eighth: the others go on without the first, and give
// the second up at their deadline.
TEST_F(TenMinutes, TheGroupGoesOnWithoutADeadRankAndGivesUpAtItsDeadline) {
  constexpr int ranks = 4, dies = 3, hangs = 2;
  LocalWorld world(ranks, {}, env_);
  std::vector<std::int64_t> summed(ranks);
  std::vector<std::int64_t> gave_up_s;
  bool over = false;
  const auto run_rank = [&](int rank) {
    const std::unique_ptr<ShrinkingWorld> mine = world.join(rank);
    const auto all_dead = [](const Member&) { return true; };
    const std::unique_ptr<Membership> membership = Membership::begin(env_, *mine, 60'000, all_dead).value();
    while (true) {
      if (rank == dies && env_.now_s() >= 4 * minute_s) return;
      if (rank == hangs && env_.now_s() >= 7 * minute_s) {
        while (!over) env_.sleep_us(second_us);
        return;
      }
      std::vector<std::int64_t> one = {1};
      const Result<void> outcome = all_reduce_sum(membership->communicator(), Waiter(env_, 20'000), one);
      if (outcome.ok()) {
        ++summed[static_cast<std::size_t>(rank)];
        EXPECT_EQ(one[0], env_.now_s() < 4 * minute_s ? 4 : 3);
        env_.sleep_us(second_us);
      } else if (!membership->recover(30'000, outcome.error().message).ok()) {
        gave_up_s.push_back(env_.now_s());
        return;
      }
    }
  };
  std::vector<std::unique_ptr<Thread>> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.push_back(beside("rank", [&, rank] { run_rank(rank); }));
  env_.sleep_us(10 * minute_s * second_us);
  over = true;
  threads.clear();
  EXPECT_NEAR(static_cast<double>(summed[0]), 420.0, 3.0);
  ASSERT_EQ(gave_up_s.size(), 2U);
  for (const std::int64_t at_s : gave_up_s) EXPECT_NEAR(static_cast<double>(at_s), 7 * 60 + 20 + 30, 2.0);
}

// As the launcher asks while a run trains (runtime/launch/launcher_hosts.cc): one host answers soon, one late, one never.
TEST_F(TenMinutes, HostsAreAskedInTheBackground) {
  env_.answers = {{"quick", {.after_s = 1}}, {"late", {.after_s = 3}}};
  std::vector<LaunchHost> hosts(4);
  hosts[0].name = "here", hosts[1].name = "quick", hosts[2].name = "late", hosts[3].name = "silent";
  using Answers = std::vector<HostAnswer>;
  BackgroundJob<Answers> job;
  for (int minute = 1; minute <= 10; ++minute) {
    const std::int64_t end_s = env_.now_s() + 5;
    job.start(env_, "host probe", [&, end_s]() -> Result<Answers> {
      return ask_hosts(env_, hosts, {"holdfast", "look"},
                       [&, end_s] { return (end_s - env_.now_s()) * 1'000; });
    });
    while (!job.finished()) env_.sleep_us(second_us / 10);
    std::vector<std::optional<int>> codes;
    const Result<Answers> taken = job.take();
    for (const HostAnswer& answer : *taken) codes.push_back(answer.code);
    EXPECT_THAT(codes, ElementsAre(Optional(0), Optional(0), Optional(0), std::nullopt));
    env_.sleep_us(minute * minute_s * second_us - env_.now_s() * second_us);
  }
}

// A whole run of three ranks whose steps last half a minute each: RAM snapshots, checkpoints on the disk, a death in the
// eighth step and the recovery from it.
class SimulatedRun : public RecoveryTest {};

// A machine on which what is computed takes the time that it takes, as a run measures it, and only waits are simulated.
class ComputingMachine final : public SimulatedEnv {
 public:
  ComputingMachine() : SimulatedEnv(posix_env()) {}

 private:
  std::int64_t look_takes_ns() override {
    const std::int64_t now_ns = posix_env().monotonic_ns();
    return std::max<std::int64_t>(now_ns - std::exchange(looked_ns_, now_ns), 1);
  }

  std::int64_t looked_ns_ = posix_env().monotonic_ns();
};

TEST_F(SimulatedRun, TenMinutesOfTrainingHaveTheBitsOfTheUndisturbedRun) {
  const std::string end = reference(), run = "simulated";
  ComputingMachine machine;
  const auto step_lasts = [&](int, int) { machine.sleep_us(30 * second_us); };
  EXPECT_EQ(survive({.run = run,
                     .ranks = 3,
                     .overrides = {"checkpoint.every_steps=4", "checkpoint.ram_every_steps=1",
                                   "checkpoint.replicas=off"},
                     .faults = "step.before_vote@8:1=kill"},
                    {.before_step = step_lasts, .machine = &machine}),
            1);
  EXPECT_GE(machine.now_s(), 10 * minute_s);
  EXPECT_LT(machine.now_s(), 12 * minute_s);
  EXPECT_EQ(digest(run), end);
  EXPECT_EQ(events(run, "recovery").size(), 1U);
}

// The guard of a simulated run: the board of its ranks, and the mind that looks at them. It ends nobody, and keeps what
// it would have said.
class SimulatedGuard {
 public:
  SimulatedGuard(SimulatedEnv& env, int ranks)
      : env_(&env),
        name_(fmt::format("holdfast-test-{:016x}", env.random_u64())),
        board_(Board::open_or_create(env, name_, {.slots = static_cast<std::uint32_t>(ranks)}).value()),
        mind_({}, "here", static_cast<std::size_t>(ranks)) {}
  ~SimulatedGuard() { static_cast<void>(env_->remove_shared_memory(name_).ok()); }
  SimulatedGuard(const SimulatedGuard&) = delete;
  SimulatedGuard& operator=(const SimulatedGuard&) = delete;

  // The watch of a rank.
  std::unique_ptr<RankWatch> watch(Env& env, int rank) {
    return RankWatch::begin(
               env, {.board = name_, .slots = board_->slots(), .launched_rank = rank, .limits = limits_})
        .value();
  }
  void tick() {
    mind_.begin_tick(env_->monotonic_ns(), env_->wall_time_us());
    HostEvidence evidence;
    for (std::uint32_t index = 0; index < board_->slots(); ++index) {
      SlotView slot = read_slot(board_->slot(index));
      mind_.look_at(index, {.slot = slot, .ended = slot.process == 0 || slot.left});
      slot.life_ns = mind_.life_ns(index);
      evidence.slots.push_back(slot);
      evidence.processes.push_back({.state = 'S', .resident_bytes = 1 << 20});
    }
    act(mind_.end_look(evidence.processes, false));
    act(mind_.find_hangs(evidence));
  }
  const std::vector<std::string>& hangs() const { return hangs_; }

 private:
  void act(const GuardActions& actions) {
    for (const GuardAction& action : actions) {
      if (action.kind == GuardAction::Kind::post_hang) hangs_.push_back(action.text);
    }
  }

  SimulatedEnv* env_;
  std::string name_;
  std::unique_ptr<Board> board_;
  GuardMind mind_;
  DeadlineLimits limits_ = deadline_limits({});
  std::vector<std::string> hangs_;
};

// A recovery reads a checkpoint from a disk that takes minutes for it: nobody hangs, and nobody is given up.
TEST_F(SimulatedRun, ARecoveryFromASlowDiskEndsNobody) {
  const std::string end = reference(), run = "slow";
  ComputingMachine machine;
  SimulatedGuard guard(machine, 3);
  bool over = false;
  const auto ticks = machine
                         .start_thread("guard",
                                       [&] {
                                         for (; !over; machine.sleep_us(second_us / 4)) guard.tick();
                                       })
                         .value();
  const auto disk_is_slow = [&](int) {
    machine.storage_takes({.read_us = 2 * second_us, .path_contains = "/checkpoints/"});
  };
  const auto disk_is_quick = [&](int, int) { machine.storage_takes({}); };
  EXPECT_EQ(survive({.run = run,
                     .ranks = 3,
                     .overrides = {"checkpoint.every_steps=4", "checkpoint.ram_every_steps=0"},
                     .faults = "step.before_vote@10:1=kill"},
                    {.before_step = disk_is_quick,
                     .before_death = disk_is_slow,
                     .machine = &machine,
                     .begin_watch = [&](Env& env, int rank) { return guard.watch(env, rank); }}),
            1);
  over = true;
  ticks->wait();
  EXPECT_THAT(guard.hangs(), ElementsAre());
  EXPECT_GE(machine.now_s(), 2 * minute_s) << "the disk was quick";
  EXPECT_EQ(digest(run), end);
  EXPECT_EQ(events(run, "recovery").size(), 1U);
}

}  // namespace
}  // namespace holdfast::test
