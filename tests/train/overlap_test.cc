// That gradients leave while backward runs, counted on a real model.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/support/worker_rig.h"

namespace holdfast::test {
namespace {

// Twenty buckets: the head, two of each layer and the embedding, which is never early, because it is complete
// when backward is. Each takes backward some milliseconds, and four may be late, so a thread that does not
// get a processor at once breaks nothing. Where other programs have all processors a step may still suffer:
// the best of three counts.
class Overlap : public testing::TestWithParam<const char*> {};

TEST_P(Overlap, FourFifthsOfTheBucketsLeaveBeforeBackwardEnds) {
  constexpr int ranks = 2, steps = 3, warm_up_steps = 1;
  constexpr std::uint64_t bucket_count = 20;
  Config config;
  config.model.layers = 9;
  config.model.heads = 4;
  config.model.width = 192;
  config.training.steps = 100;
  config.training.sequence_length = 128;
  config.training.microbatch_size = 4;
  config.training.recompute = GetParam();
  config.parallel.lanes = ranks;
  std::array<std::vector<double>, ranks> shares;
  WorkerRig rig(config, ranks);
  rig.run([&](Worker& worker) -> Result<void> {
    EXPECT_EQ(worker.buckets().buckets().size(), bucket_count);
    for (int step = 0; step < warm_up_steps + steps; ++step) {
      const LaneReductionCounts before = worker.reduction().counts();
      HF_TRY_VOID(outcome_of(run_step(worker, {})));
      const LaneReductionCounts after = worker.reduction().counts();
      const std::uint64_t early =
          after.buckets_sent_before_backward_ended - before.buckets_sent_before_backward_ended;
      EXPECT_EQ(after.buckets_sent - before.buckets_sent, bucket_count);
      EXPECT_LT(early, bucket_count);
      if (step < warm_up_steps) continue;
      shares[static_cast<std::size_t>(worker.communicator().rank())].push_back(
          static_cast<double>(early) / static_cast<double>(bucket_count));
    }
    return {};
  });
  for (const std::vector<double>& of_rank : shares) {
    ASSERT_EQ(of_rank.size(), static_cast<std::size_t>(steps));
    RecordProperty("shares", fmt::format("{} {} {}", of_rank[0], of_rank[1], of_rank[2]));
    EXPECT_GE(*std::ranges::max_element(of_rank), 0.8)
        << fmt::format("{} {} {}", of_rank[0], of_rank[1], of_rank[2]);
  }
}

INSTANTIATE_TEST_SUITE_P(Recompute, Overlap, testing::Values("none", "selective", "full"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace holdfast::test
