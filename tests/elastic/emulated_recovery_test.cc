// Runs on the emulated CUDA device some of whose ranks die: what the device remembers (graphs) holds
// addresses of memory that goes with the worker.
#include <fmt/core.h>

#include <cstdlib>

#include "tests/elastic/recovery_fixture.h"

namespace holdfast::test {
namespace {

class EmulatedRecovery : public RecoveryTest {
 protected:
  EmulatedRecovery() { setenv("HOLDFAST_CUDA_MODULE", HF_BINARY_DIR "/bin/libholdfast_cuda_emulated.so", 1); }
  ~EmulatedRecovery() override {
    unsetenv("HOLDFAST_CUDA_MODULE");
    unsetenv("EMULATED_GPUS");
  }

  static void host_has(int gpus) { setenv("EMULATED_GPUS", std::to_string(gpus).c_str(), 1); }

  static Launch launch(const std::string& run, const std::vector<std::string>& more = {}) {
    Launch launch{.run = run,
                  .ranks = 3,
                  .overrides = {"device=cuda", "training.steps=6", "training.sequence_length=8",
                                "optimizer.warmup_steps=2", "evaluation.every_steps=0",
                                "checkpoint.ram_every_steps=1", "parallel.lanes=3"}};
    launch.overrides.insert(launch.overrides.end(), more.begin(), more.end());
    return launch;
  }
  // Makes the first two steps, on a host with so many GPUs.
  void begin(const std::string& run, int gpus) {
    host_has(gpus);
    Launch first = launch(run);
    first.stop_after_steps = 2;
    EXPECT_EQ(train(first).code, ExitCode::saved);
  }
  std::string undisturbed() {
    host_has(3);
    EXPECT_EQ(survive(launch("undisturbed")), 0);
    return digest("undisturbed");
  }
};

TEST_F(EmulatedRecovery, UnderCudaGraphsTheBitsAreThoseOfTheUndisturbedRun) {
  const std::vector<std::string> what = {"device=cuda",
                                         "training.cuda_graphs=true",
                                         "training.steps=4",
                                         "training.sequence_length=8",
                                         "training.microbatches_per_lane=2",
                                         "optimizer.warmup_steps=2",
                                         "evaluation.every_steps=0",
                                         "checkpoint.ram_every_steps=1",
                                         "parallel.lanes=3"};
  ASSERT_EQ(survive({.run = "undisturbed", .ranks = 1, .overrides = what}), 0);
  for (const auto& [ranks, faults] :
       {std::pair{2, "step.before_vote@3:1=kill"}, std::pair{3, "step.begin@2:0=kill,step.end@3:2=kill"}}) {
    const std::string run = fmt::format("disturbed-{}", ranks);
    EXPECT_GT(survive({.run = run, .ranks = ranks, .overrides = what, .faults = faults}), 0);
    EXPECT_EQ(digest(run), digest("undisturbed")) << ranks << " ranks";
  }
}

TEST_F(EmulatedRecovery, RanksThatWouldShareAGpuBecauseOneIsGoneLeave) {
  begin("a", 3);
  host_has(2);
  EXPECT_EQ(survive(launch("a")), 1);
  EXPECT_EQ(digest("a"), undisturbed());
}

TEST_F(EmulatedRecovery, RanksShareAGpuThatIsLeftWhereTheConfigSaysSo) {
  begin("a", 3);
  host_has(2);
  EXPECT_EQ(survive(launch("a", {"parallel.ranks_per_gpu=2"})), 0);
  EXPECT_EQ(digest("a"), undisturbed());
}

TEST_F(EmulatedRecovery, RanksThatHaveSharedAGpuSinceTheFirstStartGoOnToShareIt) {
  begin("a", 1);
  EXPECT_EQ(survive(launch("a")), 0);
  EXPECT_EQ(digest("a"), undisturbed());
}

TEST_F(EmulatedRecovery, ANewRankDoesNotGetTheGpuOfAnotherOneInsteadOfOneThatIsGone) {
  host_has(3);
  Launch grows = launch("a", {"elastic.grow_after=0ms", "elastic.memory_timeout=0s", "training.steps=12"});
  ASSERT_EQ(survive(launch("undisturbed-12", {"training.steps=12"})), 0);
  Trouble trouble{.newcomers = 2};
  trouble.before_death = [](int rank) {
    if (rank == 2) host_has(2);
  };
  grows.faults = "step.begin@3:2=kill";
  EXPECT_GE(survive(grows, trouble), 2) << "the rank, and those that came for it";
  EXPECT_EQ(digest("a"), digest("undisturbed-12"));
  ASSERT_FALSE(events("a", "recovery").empty());
  EXPECT_EQ(events("a", "recovery").back()["ranks_after"], 2);
}

}  // namespace
}  // namespace holdfast::test
