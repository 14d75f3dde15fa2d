// Runs over NCCL some of whose ranks die: its double, whose kernels wait for the dead for ever.
#include <gmock/gmock.h>

#include <cstdlib>
#include <map>

#include "tests/parallel_nccl/nccl_double.h"
#include "tests/train/recovery_fixture.h"

namespace holdfast {
namespace {

using test::NcclDouble;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class NcclRecovery : public RecoveryTest {
 protected:
  NcclRecovery() { setenv("HOLDFAST_CUDA_MODULE", HF_BINARY_DIR "/bin/libholdfast_cuda_emulated.so", 1); }
  ~NcclRecovery() override { unsetenv("HOLDFAST_CUDA_MODULE"); }
};

TEST_F(NcclRecovery, ADeathIsHealedWithNewCommunicators) {
  const std::vector<std::string> small = {"device=cuda",
                                          "training.steps=6",
                                          "training.sequence_length=8",
                                          "training.microbatch_size=1",
                                          "optimizer.warmup_steps=1",
                                          "evaluation.every_steps=0",
                                          "checkpoint.ram_every_steps=1"};
  ASSERT_EQ(survive({.run = "whole", .ranks = 1, .overrides = small}), 0);
  for (const char* point : {"step.before_reduce", "step.before_vote", "step.before_gather"}) {
    SCOPED_TRACE(point);
    test::NcclWorld world;
    std::mutex mutex;
    std::map<int, NcclDouble*> newest;  // of each rank
    std::size_t sessions = 0;
    Trouble trouble;
    trouble.load_nccl = [&](int rank) -> Result<std::unique_ptr<NcclLibrary>> {
      constexpr int modern = 23007;  // takes ranks that share a GPU
      auto made = std::make_unique<NcclDouble>(world, modern);
      const std::lock_guard guard(mutex);
      newest[rank] = made.get();
      ++sessions;
      return std::unique_ptr<NcclLibrary>(std::move(made));
    };
    trouble.before_death = [&](int rank) {
      const std::lock_guard guard(mutex);
      newest.at(rank)->die();
    };
    const std::string run = fmt::format("healed-{}", point);
    EXPECT_EQ(
        survive({.run = run, .ranks = 3, .overrides = small, .faults = fmt::format("{}@3:1=kill", point)},
                trouble),
        1);
    EXPECT_EQ(sessions, 3U + 2U) << "one for each rank of each epoch";
    EXPECT_EQ(digest(run), digest("whole"));
    EXPECT_THAT(world.names(), UnorderedElementsAre("holdfast-e0-data", "holdfast-e1-data"));
    EXPECT_EQ(events(run, "recovery").size(), 1U);
    EXPECT_THAT(world.violations(), IsEmpty());
    EXPECT_EQ(world.handles_left(), 0);
  }
}

}  // namespace
}  // namespace holdfast
