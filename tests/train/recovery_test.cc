// Whole runs some of whose ranks die: threads of this process, whose death ends them alone.
#include <gmock/gmock.h>

#include <optional>
#include <set>
#include <system_error>
#include <thread>

#include "checkpoint/ram_tier.h"
#include "parallel/local/local_world.h"
#include "tests/support/forwarding_env.h"
#include "tests/train/training_fixture.h"

namespace holdfast {
namespace {

using testing::HasSubstr;

// What a thread dies of where a process would have had SIGKILL. At the fault points of a step and of a
// recovery, which a rank passes on its own thread.
struct Death {};

class MortalEnv final : public ForwardingEnv {
 public:
  MortalEnv(Env& inner, bool damages_snapshots)
      : ForwardingEnv(inner), damages_snapshots_(damages_snapshots) {}
  [[noreturn]] void kill_self() override { throw Death{}; }
  // Whoever looks at what the dead left finds a flipped bit in the first piece of it.
  Result<std::unique_ptr<SharedMemory>> open_shared_memory(const std::string& name) override {
    HF_TRY(std::unique_ptr<SharedMemory> memory, inner().open_shared_memory(name));
    if (damages_snapshots_ && damaged_.insert(name).second) memory->bytes()[5000] ^= std::byte{4};
    return memory;
  }

 private:
  bool damages_snapshots_;
  std::set<std::string> damaged_;
};

// Asks for no stop; one rank's system refuses it something when it is asked for the fifth time.
class Refusal final : public StopSource {
 public:
  explicit Refusal(bool refuses) : refuses_(refuses) {}
  bool stop_requested() override {
    constexpr int at = 5;
    if (++asked_ == at && refuses_)
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    return false;
  }

 private:
  bool refuses_;
  int asked_ = 0;
};

struct Trouble {
  int refused_rank = -1;
  bool damages_snapshots = false;  // of rank 0, which reads them
};

class RecoveryTest : public TrainingTest {
 protected:
  // How every rank ended; none: it died.
  std::vector<std::optional<RunEnd>> train_all(const Launch& launch, const Trouble& trouble = {}) {
    std::vector<std::string> arguments;
    for (const std::string& line : launch.overrides) arguments.push_back("--" + line);
    const Result<std::vector<Override>> overrides = parse_overrides(arguments);
    EXPECT_TRUE(overrides.ok());
    LocalWorld world(launch.ranks);
    std::vector<std::optional<RunEnd>> ends(static_cast<std::size_t>(launch.ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < launch.ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<ShrinkingWorld> mine = world.join(rank);
        try {
          ends[static_cast<std::size_t>(rank)] = train_rank(launch, trouble, *overrides, *mine, rank);
        } catch (const Death&) {
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return ends;
  }

  RunEnd train_rank(const Launch& launch, const Trouble& trouble, const std::vector<Override>& overrides,
                    ShrinkingWorld& world, int rank) {
    MortalEnv env(posix_env(), trouble.damages_snapshots && rank == 0);
    const Result<std::unique_ptr<FaultPoints>> faults = FaultPoints::parse(launch.faults, rank, env);
    EXPECT_TRUE(faults.ok()) << faults.error().message;
    Refusal stop(rank == trouble.refused_rank);
    const Result<LoadedConfig> config = load_config_text(env, config_text(launch), "test.toml", overrides);
    const Result<std::unique_ptr<Membership>> membership =
        Membership::begin(env, world, 60'000, [](const Member&) { return true; });
    EXPECT_TRUE(membership.ok()) << membership.error().message;
    return train_run({.env = env,
                      .faults = **faults,
                      .communicator = (*membership)->communicator(),
                      .stop = stop,
                      .config = config,
                      .build = "test",
                      .started_ns = env.monotonic_ns(),
                      .membership = membership->get()});
  }

  // Those that live come to the end; how many died.
  int survive(const Launch& launch, const Trouble& trouble = {}) {
    int deaths = 0;
    for (const std::optional<RunEnd>& end : train_all(launch, trouble)) {
      if (!end.has_value()) {
        ++deaths;
        continue;
      }
      EXPECT_EQ(end->code, ExitCode::done) << end->message;
    }
    const Result<std::string> id = posix_env().read_text(RunPaths{run_directory(launch.run)}.run_id());
    EXPECT_TRUE(id.ok());
    if (id.ok()) {
      const Result<SharedSnapshots> left = remove_snapshots(posix_env(), digest_of(*id));
      EXPECT_EQ(left->count, 0U) << "left behind";
    }
    return deaths;
  }

  std::vector<nlohmann::json> events(const std::string& run, const std::string& name) const {
    const Result<std::string> text = posix_env().read_text(RunPaths{run_directory(run)}.events());
    std::vector<nlohmann::json> found;
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json event = nlohmann::json::parse(line);
      if (event["event"] == name) found.push_back(std::move(event));
    }
    return found;
  }

  std::string reference() {
    EXPECT_EQ(train({.run = "reference"}).code, ExitCode::done);
    return digest("reference");
  }
};

struct Disturbed {
  const char* what;
  int ranks;
  int deaths;
  std::vector<std::string> overrides;
  const char* faults;
};

TEST_F(RecoveryTest, TheBitsAreThoseOfTheUndisturbedRun) {
  const std::string end = reference();
  const std::string ram = "checkpoint.ram_every_steps=1", seldom = "checkpoint.ram_every_steps=3";
  const Disturbed cases[] = {
      {"one of two, nothing saved", 2, 1, {}, "step.before_vote@4:1=kill"},
      {"one of two, from the disk", 2, 1, {"checkpoint.every_steps=3"}, "step.after_vote@8:1=kill"},
      {"one of two, from RAM", 2, 1, {ram}, "step.before_vote@8:1=kill"},
      {"the leader", 3, 1, {ram}, "step.before_gather@8:0=kill"},
      {"one after another",
       4,
       3,
       {ram},
       "step.begin@5:3=kill,step.end@9:0=kill,step.before_reduce@14:2=kill"},
      {"two at once", 4, 2, {seldom}, "step.begin@8:1=kill,step.begin@8:2=kill"},
      {"a rank of a pipeline", 4, 1, {ram, "parallel.pipeline=2"}, "step.before_backward@7:2=kill"},
      {"a rank of each copy",
       4,
       2,
       {seldom, "parallel.pipeline=2"},
       "step.before_vote@7:0=kill,step.before_vote@7:3=kill"},
      {"with a spare", 3, 1, {ram, "elastic.spares=1"}, "step.before_vote@7:1=kill"},
      {"the spare and more",
       4,
       2,
       {ram, "elastic.spares=1"},
       "step.before_vote@7:2=kill,recover.before_load:3=kill"},
      {"while they come together", 4, 2, {ram}, "step.begin@6:3=kill,recover.begin:1=kill"},
      {"right after it", 4, 2, {ram}, "step.begin@6:3=kill,recover.after_shrink:0=kill"},
      {"before it goes on", 3, 2, {seldom}, "step.begin@6:1=kill,recover.before_resume:0=kill"},
      {"in the last step", 2, 1, {ram}, "step.end@20:1=kill"},
      {"in the first step", 2, 1, {ram}, "step.begin@1:1=kill"},
      {"at the start", 3, 1, {ram}, "start.after_join:0=kill"},
      {"in an evaluation", 2, 1, {ram}, "evaluation.begin@1:0=kill"},
  };
  int number = 0;
  for (const Disturbed& each : cases) {
    SCOPED_TRACE(each.what);
    const std::string run = fmt::format("disturbed-{}", ++number);
    EXPECT_EQ(survive({.run = run, .ranks = each.ranks, .overrides = each.overrides, .faults = each.faults}),
              each.deaths);
    EXPECT_EQ(digest(run), end);
    EXPECT_EQ(events(run, "start").size(), 1U) << "nobody was started again";
    std::set<int> steps;
    for (const nlohmann::json& event : events(run, "step")) steps.insert(event["step"].get<int>());
    EXPECT_EQ(steps.size(), 20U);
  }
}

TEST_F(RecoveryTest, TellsWhatHappened) {
  ASSERT_EQ(survive({.run = "told",
                     .ranks = 4,
                     .overrides = {"checkpoint.ram_every_steps=1", "elastic.spares=1"},
                     .faults = "step.before_vote@8:1=kill,step.before_vote@5:2=kill"}),
            2);
  const std::vector<nlohmann::json> faults = events("told", "fault"), healed = events("told", "recovery");
  ASSERT_EQ(faults.size(), 2U);
  ASSERT_EQ(healed.size(), 2U);
  EXPECT_THAT(faults[0]["lost"], HasSubstr("rank 2 (host "));
  EXPECT_EQ(faults[0]["step"], 4);
  EXPECT_EQ(healed[0]["level"], 1);
  EXPECT_EQ(healed[0]["ranks_before"], 4);
  EXPECT_EQ(healed[0]["ranks_after"], 3);
  EXPECT_EQ(healed[0]["seats_before"], 3);
  EXPECT_EQ(healed[0]["seats_after"], 3);
  EXPECT_EQ(healed[0]["spares"], 0);
  EXPECT_EQ(healed[0]["lost_steps"], 0);
  EXPECT_EQ(healed[0]["resumed_from"], "ram");
  EXPECT_EQ(healed[1]["seats_after"], 2);
  EXPECT_EQ(healed[1]["ranks_before"], 3);
  for (const char* part : {"shrink_ms", "plan_ms", "load_ms", "replay_ms"}) EXPECT_GE(healed[1][part], 0);
}

TEST_F(RecoveryTest, ADamagedSnapshotIsPassedOver) {
  const std::string end = reference();
  EXPECT_EQ(train({.run = "damaged", .ranks = 2, .stop_after_steps = 5}).code, ExitCode::saved);
  EXPECT_EQ(survive({.run = "damaged",
                     .ranks = 2,
                     .overrides = {"checkpoint.ram_every_steps=1"},
                     .faults = "step.before_vote@4:1=kill"},
                    {.damages_snapshots = true}),
            1);
  const std::vector<nlohmann::json> healed = events("damaged", "recovery");
  ASSERT_EQ(healed.size(), 1U);
  EXPECT_EQ(healed[0]["resumed_from"], "disk");
  EXPECT_EQ(healed[0]["resumed_from_step"], 5);
  EXPECT_EQ(healed[0]["lost_steps"], 3);
  EXPECT_EQ(digest("damaged"), end);
}

// It dies as others are killed, so that the run goes on.
TEST_F(RecoveryTest, ARankWhoseSystemFailsItLeavesTheOthersInPeace) {
  const std::string end = reference();
  EXPECT_EQ(survive({.run = "refused", .ranks = 3, .overrides = {"checkpoint.ram_every_steps=1"}},
                    {.refused_rank = 1}),
            1);
  EXPECT_EQ(events("refused", "recovery").size(), 1U);
  EXPECT_EQ(digest("refused"), end);
}

// Ends together, says why, and is resumed by a start with enough ranks.
TEST_F(RecoveryTest, EndsWhereTooFewAreLeft) {
  const std::string end = reference();
  const Launch few{.run = "few",
                   .ranks = 3,
                   .overrides = {"checkpoint.ram_every_steps=1", "elastic.min_data_parallel=3"},
                   .faults = "step.before_vote@8:0=kill"};
  const std::vector<std::optional<RunEnd>> ends = train_all(few);
  EXPECT_FALSE(ends[0].has_value());
  for (std::size_t rank : {1U, 2U}) {
    ASSERT_TRUE(ends[rank].has_value());
    EXPECT_EQ(ends[rank]->code, ExitCode::communication);
    EXPECT_THAT(ends[rank]->message, HasSubstr("2 ranks are left, which are not enough for 3 copies"));
  }
  const RunStatus status = read_status(posix_env(), {run_directory("few")});
  EXPECT_EQ(status.state, "failed");
  EXPECT_THAT(status.reason, HasSubstr("elastic.min_data_parallel"));
  EXPECT_EQ(train({.run = "few", .ranks = 2, .overrides = {"checkpoint.ram_every_steps=1"}}).code,
            ExitCode::done);
  EXPECT_EQ(digest("few"), end);
}

// A spare computes nothing and ends as the run does.
TEST_F(RecoveryTest, ASpareWaitsForTheEnd) {
  const std::string end = reference();
  EXPECT_EQ(survive({.run = "spare", .ranks = 3, .overrides = {"elastic.spares=1"}}), 0);
  EXPECT_EQ(digest("spare"), end);
  const std::vector<std::optional<RunEnd>> failed =
      train_all({.run = "wild",
                 .ranks = 3,
                 .overrides = {"elastic.spares=1", "optimizer.learning_rate=100", "optimizer.gradient_clip=0",
                               "optimizer.schedule=constant"}});
  for (const std::optional<RunEnd>& each : failed) {
    ASSERT_TRUE(each.has_value());
    EXPECT_EQ(each->code, failed[0]->code);
    EXPECT_EQ(each->message, failed[0]->message);
  }
}

}  // namespace
}  // namespace holdfast
