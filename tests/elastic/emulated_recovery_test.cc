// Runs on the emulated CUDA device some of whose ranks die: what the device remembers (graphs) holds
// addresses of memory that goes with the worker.
#include <fmt/core.h>

#include <cstdlib>

#include "tests/elastic/recovery_fixture.h"

namespace holdfast {
namespace {

class EmulatedRecovery : public RecoveryTest {
 protected:
  EmulatedRecovery() { setenv("HOLDFAST_CUDA_MODULE", HF_BINARY_DIR "/bin/libholdfast_cuda_emulated.so", 1); }
  ~EmulatedRecovery() override { unsetenv("HOLDFAST_CUDA_MODULE"); }
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

}  // namespace
}  // namespace holdfast
