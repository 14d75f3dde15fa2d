// Runs over NCCL some of whose ranks die: its double, whose kernels wait for the dead for ever.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <thread>

#include "runtime/core/json.h"
#include "tests/elastic/recovery_fixture.h"
#include "tests/parallel/nccl/nccl_double.h"

namespace holdfast::test {
namespace {

using test::NcclDouble;
using testing::ContainsRegex;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

// NCCL of every rank and epoch.
class Doubles {
 public:
  Doubles() { world.watch_freed_memory(); }
  test::NcclWorld world;

  // A rank that dies takes its NCCL with it.
  Trouble trouble() {
    Trouble trouble;
    trouble.load_nccl = [this](int rank) -> Result<std::unique_ptr<NcclLibrary>> {
      constexpr int modern = 23007;  // takes ranks that share a GPU
      auto made = std::make_unique<NcclDouble>(world, modern);
      if (!never_starts_.empty()) made->never_start(never_starts_);
      const std::lock_guard guard(mutex_);
      newest_[rank] = made.get();
      ++sessions_;
      return std::unique_ptr<NcclLibrary>(std::move(made));
    };
    trouble.before_death = [this](int rank) { newest_of(rank).vanish(); };
    return trouble;
  }
  NcclDouble& newest_of(int rank) {
    const std::lock_guard guard(mutex_);
    return *newest_.at(rank);
  }
  std::size_t sessions() const { return sessions_; }
  void never_start(const std::string& name) { never_starts_ = name; }  // a communicator; before the run

 private:
  std::string never_starts_;
  std::mutex mutex_;
  std::map<int, NcclDouble*> newest_;
  std::size_t sessions_ = 0;
};

class NcclRecovery : public RecoveryTest {
 protected:
  NcclRecovery() { setenv("HOLDFAST_CUDA_MODULE", HF_BINARY_DIR "/bin/libholdfast_cuda_emulated.so", 1); }
  ~NcclRecovery() override { unsetenv("HOLDFAST_CUDA_MODULE"); }

  const std::vector<std::string> small_ = {"device=cuda",
                                           "training.steps=6",
                                           "training.sequence_length=8",
                                           "training.microbatch_size=1",
                                           "optimizer.warmup_steps=1",
                                           "evaluation.every_steps=0"};
};

TEST_F(NcclRecovery, ADeathIsHealedWithNewCommunicators) {
  std::vector<std::string> often = small_;
  often.push_back("checkpoint.ram_every_steps=1");
  ASSERT_EQ(survive({.run = "whole", .ranks = 1, .overrides = often}), 0);
  for (const char* point : {"step.before_reduce", "step.before_vote", "step.before_gather"}) {
    SCOPED_TRACE(point);
    Doubles doubles;
    const std::string run = fmt::format("healed-{}", point);
    EXPECT_EQ(
        survive({.run = run, .ranks = 3, .overrides = often, .faults = fmt::format("{}@3:1=kill", point)},
                doubles.trouble()),
        1);
    EXPECT_EQ(doubles.sessions(), 3U + 2U) << "one for each rank of each epoch";
    EXPECT_EQ(digest(run), digest("whole"));
    EXPECT_THAT(doubles.world.names(), UnorderedElementsAre("holdfast-e0-data", "holdfast-e1-data"));
    EXPECT_EQ(events(run, "recovery").size(), 1U);
    EXPECT_THAT(doubles.world.violations(), IsEmpty());
    EXPECT_EQ(doubles.world.handles_left(), 0);
  }
}

// The others of its tensor group have put exchanges with it into their device's queue, which waits for them.
TEST_F(NcclRecovery, ADeathBetweenExchangesOfSlicesIsHealed) {
  std::vector<std::string> slices = small_;
  slices.insert(slices.end(),
                {"checkpoint.ram_every_steps=1", "parallel.tensor_lanes=2", "parallel.lanes=2"});
  ASSERT_EQ(survive({.run = "whole", .ranks = 1, .overrides = slices}), 0);
  slices.push_back("parallel.tensor=2");
  for (const char* point : {"step.before_backward", "step.before_reduce", "step.before_vote"}) {
    SCOPED_TRACE(point);
    Doubles doubles;
    const std::string run = fmt::format("slices-{}", point);
    EXPECT_EQ(
        survive({.run = run, .ranks = 4, .overrides = slices, .faults = fmt::format("{}@3:1=kill", point)},
                doubles.trouble()),
        1);
    EXPECT_EQ(digest(run), digest("whole"));
    EXPECT_TRUE(doubles.world.names().contains("holdfast-e1-tensor"));
    EXPECT_THAT(doubles.world.violations(), IsEmpty());
    EXPECT_EQ(doubles.world.handles_left(), 0);
  }
}

// A rank that frees what it shares with others of its host while a kernel of theirs runs kills them: here one of two
// survivors takes long to stop its own.
TEST_F(NcclRecovery, NoSurvivorFreesMemoryBeforeAllHaveStopped) {
  std::vector<std::string> often = small_;
  often.push_back("checkpoint.ram_every_steps=1");
  ASSERT_EQ(survive({.run = "whole", .ranks = 1, .overrides = often}), 0);
  Doubles doubles;
  Trouble trouble = doubles.trouble();
  const auto has_stopped = [&doubles](const std::string& rank) {
    return std::ranges::count(doubles.world.ends(), "revoke " + rank + " holdfast-e0-data") > 0;
  };
  std::thread late;
  const auto die = trouble.before_death;
  trouble.before_death = [&](int rank) {
    doubles.newest_of(2).block("ncclCommRevoke");
    die(rank);
    late = std::thread([&] {
      while (!has_stopped("0")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      doubles.newest_of(2).release();
    });
  };
  EXPECT_EQ(survive({.run = "late", .ranks = 3, .overrides = often, .faults = "step.before_reduce@3:1=kill"},
                    trouble),
            1);
  ASSERT_TRUE(late.joinable());
  late.join();
  const std::vector<std::string> ends = doubles.world.ends();
  const auto first_abort =
      std::ranges::find_if(ends, [](const auto& end) { return end.starts_with("abort "); });
  EXPECT_EQ(first_abort - ends.begin(), 2) << testing::PrintToString(ends);
  EXPECT_TRUE(has_stopped("0") && has_stopped("2"));
  EXPECT_THAT(doubles.world.violations(), IsEmpty());
  EXPECT_EQ(digest("late"), digest("whole"));
}

// One of two survivors dies while the other waits for it to stop.
TEST_F(NcclRecovery, ADeathWhileTheSurvivorsStopIsHealedToo) {
  std::vector<std::string> often = small_;
  often.push_back("checkpoint.ram_every_steps=1");
  ASSERT_EQ(survive({.run = "whole", .ranks = 1, .overrides = often}), 0);
  Doubles doubles;
  EXPECT_EQ(survive({.run = "two",
                     .ranks = 3,
                     .overrides = often,
                     .faults = "step.before_reduce@3:1=kill,recover.begin:2=kill"},
                    doubles.trouble()),
            2);
  EXPECT_THAT(doubles.world.violations(), IsEmpty());
  EXPECT_EQ(digest("two"), digest("whole"));
}

// NCCL that takes long to connect holds up nobody: here the survivors make all steps that are left, and it never does.
TEST_F(NcclRecovery, StepsGoOnThroughPinnedMemoryWhileNcclConnects) {
  std::vector<std::string> often = small_;
  often.push_back("checkpoint.ram_every_steps=1");
  ASSERT_EQ(survive({.run = "whole", .ranks = 1, .overrides = often}), 0);
  Doubles doubles;
  doubles.never_start("holdfast-e1-data");
  EXPECT_EQ(
      survive({.run = "pinned", .ranks = 3, .overrides = often, .faults = "step.before_reduce@3:1=kill"},
              doubles.trouble()),
      1);
  EXPECT_EQ(digest("pinned"), digest("whole"));
  EXPECT_THAT(doubles.world.names(), UnorderedElementsAre("holdfast-e0-data", "holdfast-e1-data"));
  EXPECT_EQ(doubles.world.messages().count("holdfast-e1-data"), 0U);
  EXPECT_THAT(doubles.world.violations(), IsEmpty());
  EXPECT_EQ(doubles.world.handles_left(), 0);
}

TEST_F(NcclRecovery, NcclMovesTheMessagesAgainWhenItIsConnected) {
  std::vector<std::string> longer = small_;
  longer.insert(longer.end(),
                {"checkpoint.ram_every_steps=1", "training.steps=12", "parallel.tensor_lanes=2"});
  ASSERT_EQ(survive({.run = "whole", .ranks = 1, .overrides = longer}), 0);
  const std::pair<const char*, std::vector<std::string>> layouts[] = {
      {"parallel.data=4", {"data"}},
      {"parallel.pipeline=2", {"activations-0-1", "gradients-1-0"}},
      {"parallel.tensor=2", {"tensor"}}};
  for (const auto& [layout, names] : layouts) {
    SCOPED_TRACE(layout);
    Doubles doubles;
    std::vector<std::string> options = longer;
    options.emplace_back(layout);
    const std::string run = fmt::format("again-{}", names.front());
    EXPECT_EQ(survive({.run = run, .ranks = 4, .overrides = options, .faults = "step.before_reduce@3:1=kill"},
                      doubles.trouble()),
              1);
    std::map<std::string, int> messages = doubles.world.messages();
    for (const std::string& name : names)
      EXPECT_GT(messages["holdfast-e1-" + name], 3 * 2)
          << name << ": more than the first exchange, which connects";
    EXPECT_EQ(digest(run), digest("whole"));
    EXPECT_THAT(doubles.world.violations(), IsEmpty());
    EXPECT_EQ(doubles.world.handles_left(), 0);
  }
}

TEST_F(NcclRecovery, ADeathWhileNcclConnectsIsHealedToo) {
  std::vector<std::string> longer = small_;
  longer.insert(longer.end(), {"checkpoint.ram_every_steps=1", "training.steps=12"});
  ASSERT_EQ(survive({.run = "whole", .ranks = 1, .overrides = longer}), 0);
  Doubles doubles;
  doubles.never_start("holdfast-e1-data");
  EXPECT_EQ(survive({.run = "two",
                     .ranks = 4,
                     .overrides = longer,
                     .faults = "step.before_reduce@3:1=kill,step.begin@6:2=kill"},
                    doubles.trouble()),
            2);
  EXPECT_EQ(doubles.world.messages().count("holdfast-e1-data"), 0U);
  EXPECT_GT(doubles.world.messages()["holdfast-e2-data"], 2);
  EXPECT_EQ(digest("two"), digest("whole"));
  EXPECT_THAT(doubles.world.violations(), IsEmpty());
  EXPECT_EQ(doubles.world.handles_left(), 0);
}

// Three ranks of one GPU, then two: what one communicator may take of it follows the epoch, not the process.
TEST_F(NcclRecovery, TheLimitOfThreadBlocksFollowsTheEpoch) {
  Doubles doubles;
  std::vector<std::string> often = small_;
  often.push_back("checkpoint.ram_every_steps=1");
  EXPECT_EQ(survive({.run = "limits", .ranks = 3, .overrides = often, .faults = "step.before_vote@3:1=kill"},
                    doubles.trouble()),
            1);
  EXPECT_THAT(doubles.world.max_ctas(),
              UnorderedElementsAre(Pair("holdfast-e0-data", 8), Pair("holdfast-e1-data", 16)));
  EXPECT_EQ(posix_env().variable("NCCL_MAX_CTAS"), "") << "which would hold for all epochs of the process";
  EXPECT_THAT(doubles.world.violations(), IsEmpty());
}

TEST_F(NcclRecovery, AThreadBlockLimitOfTheUserIsASentence) {
  setenv("NCCL_MAX_CTAS", "32", 1);
  Doubles doubles;
  testing::internal::CaptureStderr();
  EXPECT_EQ(survive({.run = "limits", .ranks = 3, .overrides = small_}, doubles.trouble()), 0);
  unsetenv("NCCL_MAX_CTAS");
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      ContainsRegex("NCCL_MAX_CTAS is 32 in the environment of rank 0 .*wins over the limit of 8 thread"));
}

// NCCL fails, or stalls, and nobody dies: a cable that was out for a moment.
TEST_F(NcclRecovery, AFailureOfNcclAloneIsHealedInTheSameStep) {
  std::vector<std::string> seldom = small_;
  seldom.insert(seldom.end(),
                {"checkpoint.ram_every_steps=5", "parallel.timeout=10s", "parallel.tensor_lanes=2"});
  ASSERT_EQ(survive({.run = "whole", .ranks = 1, .overrides = seldom}), 0);
  struct Case {
    const char* run;
    int ranks;
    const char* layout;
    std::function<void(NcclDouble&)> failure;
  };
  const auto fails = [](NcclDouble& library) { library.fail_next("ncclSend", 2); };
  const auto hangs = [](NcclDouble& library) { library.die(); };
  const Case cases[] = {{"fails", 3, "parallel.tensor=1", fails},
                        {"hangs", 3, "parallel.tensor=1", hangs},
                        {"fails-between-slices", 2, "parallel.tensor=2", fails},
                        {"hangs-between-slices", 2, "parallel.tensor=2", hangs}};
  for (const Case& each : cases) {
    const char* const run = each.run;
    SCOPED_TRACE(run);
    Doubles doubles;
    Trouble trouble = doubles.trouble();
    trouble.before_step = [&](int rank, int steps_begun) {
      if (rank == 1 && steps_begun == 4) each.failure(doubles.newest_of(rank));
    };
    std::vector<std::string> overrides = seldom;
    overrides.push_back(each.layout);
    EXPECT_EQ(survive({.run = run, .ranks = each.ranks, .overrides = overrides}, trouble), 0);
    EXPECT_EQ(doubles.sessions(), 2 * static_cast<unsigned>(each.ranks));
    EXPECT_EQ(digest(run), digest("whole"));
    const std::vector<Json> healed = events(run, "recovery");
    ASSERT_EQ(healed.size(), 1U);
    EXPECT_EQ(healed[0]["ranks_after"], each.ranks);
    EXPECT_EQ(healed[0]["lost_steps"], 0);
    EXPECT_EQ(healed[0]["resumed_from_step"], 3);
    EXPECT_THAT(doubles.world.violations(), IsEmpty());
    EXPECT_EQ(doubles.world.handles_left(), 0);
  }
}

// Again and again: the run goes on without it. Also right behind a death and behind a growth.
TEST_F(NcclRecovery, AFailureOfNcclThatComesAgainLeavesTheRunOnPinnedMemory) {
  struct Case {
    const char* run;
    int ranks, newcomers;
    const char* faults;
    int failing, from_step;  // which rank's, and how many steps it has begun by then
  };
  const Case cases[] = {
      {"again", 2, 0, "", 1, 4},
      {"behind a death", 3, 0, "step.before_vote@3:2=kill", 1, 4},
      {"behind a growth", 3, 1, "step.before_vote@3:2=kill", 3, 1},
  };
  std::vector<std::string> seldom = small_;
  // Growth does not wait for the third snapshot behind the death, which this short run has no room for.
  seldom.insert(seldom.end(),
                {"checkpoint.ram_every_steps=5", "elastic.grow_after=0s", "elastic.memory_timeout=0s"});
  ASSERT_EQ(survive({.run = "whole", .ranks = 1, .overrides = seldom}), 0);
  for (const Case& each : cases) {
    SCOPED_TRACE(each.run);
    Doubles doubles;
    Trouble trouble = doubles.trouble();
    trouble.newcomers = each.newcomers;
    trouble.before_step = [&](int rank, int steps_begun) {
      if (rank == each.failing && steps_begun >= each.from_step)
        doubles.newest_of(rank).fail_next("ncclSend", 2);
    };
    testing::internal::CaptureStdout();
    EXPECT_EQ(
        survive({.run = each.run, .ranks = each.ranks, .overrides = seldom, .faults = each.faults}, trouble),
        *each.faults == 0 ? 0 : 1);
    EXPECT_THAT(testing::internal::GetCapturedStdout(),
                ContainsRegex("NCCL failed on rank . of holdfast-e[12]-data .*ncclSend: .*; the run goes on "
                              "through pinned host memory"));
    EXPECT_EQ(digest(each.run), digest("whole"));
    EXPECT_THAT(doubles.world.violations(), IsEmpty());
    EXPECT_EQ(doubles.world.handles_left(), 0);
  }
}

// NCCL connects each time, and fails a step later.
TEST_F(NcclRecovery, NcclThatConnectsAndFailsAgainAndAgainIsGivenUp) {
  std::vector<std::string> longer = small_;
  longer.insert(longer.end(), {"checkpoint.ram_every_steps=5", "training.steps=24"});
  ASSERT_EQ(survive({.run = "whole", .ranks = 1, .overrides = longer}), 0);
  Doubles doubles;
  Trouble trouble = doubles.trouble();
  trouble.before_step = [&](int rank, int) {
    constexpr int more_than_connecting = 6;  // messages of an epoch
    const std::string newest = fmt::format("holdfast-e{}-data", doubles.sessions() / 2 - 1);
    if (rank == 1 && doubles.world.messages()[newest] > more_than_connecting)
      doubles.newest_of(rank).fail_next("ncclSend", 2);
  };
  testing::internal::CaptureStderr();
  EXPECT_EQ(survive({.run = "given up", .ranks = 2, .overrides = longer}, trouble), 0);
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      ContainsRegex("NCCL connected the ranks and failed again 3 times, and nobody died: the run goes on "
                    "through host memory from step [0-9]+ on; .*ncclSend"));
  EXPECT_THAT(doubles.world.names(),
              UnorderedElementsAre("holdfast-e0-data", "holdfast-e1-data", "holdfast-e2-data"));
  EXPECT_EQ(events("given up", "recovery").size(), 3U);
  EXPECT_EQ(digest("given up"), digest("whole"));
  EXPECT_THAT(doubles.world.violations(), IsEmpty());
  EXPECT_EQ(doubles.world.handles_left(), 0);
}

}  // namespace
}  // namespace holdfast::test
