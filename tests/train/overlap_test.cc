// That gradients leave while backward runs, and parameters come while the next forward does, counted on a
// real model.
#include <fmt/core.h>

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
class GradientOverlap : public testing::TestWithParam<const char*> {};

Config nine_layers(int lanes) {
  Config config;
  config.model.layers = 9;
  config.model.heads = 4;
  config.model.width = 192;
  config.training.steps = 100;
  config.training.sequence_length = 128;
  config.training.microbatch_size = 4;
  config.parallel.lanes = lanes;
  return config;
}

TEST_P(GradientOverlap, FourFifthsOfTheBucketsLeaveBeforeBackwardEnds) {
  constexpr int ranks = 2, steps = 3, warm_up_steps = 1;
  constexpr std::uint64_t bucket_count = 20;
  Config config = nine_layers(ranks);
  config.training.recompute = GetParam();
  std::array<std::vector<double>, ranks> shares;
  WorkerRig rig(config, ranks);
  rig.run([&](Worker& worker) -> Result<void> {
    EXPECT_EQ(worker.workload().buckets.buckets().size(), bucket_count);
    for (int step = 0; step < warm_up_steps + steps; ++step) {
      const LaneReductionCounts before = worker.reduction().counts();
      HF_TRY_VOID(outcome_of(run_step(worker, {})));
      const LaneReductionCounts after = worker.reduction().counts();
      const std::uint64_t early =
          after.buckets_sent_before_backward_ended - before.buckets_sent_before_backward_ended;
      EXPECT_EQ(after.buckets_sent - before.buckets_sent, bucket_count);
      EXPECT_LT(early, bucket_count);
      if (step < warm_up_steps) continue;
      shares[static_cast<std::size_t>(worker.rank().communicator.rank())].push_back(
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

// The first bucket waits for the slower rank's update; hardly one behind it is still on its way when its half
// layer is launched.
TEST(ParameterOverlap, FourFifthsOfTheParametersAreThereWhenTheForwardAsksForThem) {
  constexpr int ranks = 2, steps = 4;
  constexpr std::uint64_t bucket_count = 20;
  WorkerRig rig(nine_layers(ranks), ranks);
  std::array<std::vector<double>, ranks> shares;
  rig.run([&](Worker& worker) -> Result<void> {
    HF_TRY_VOID(outcome_of(run_step(worker, {})));
    for (int step = 0; step < steps; ++step) {
      const ParameterGatherCounts before = worker.parameter_gather().counts();
      HF_TRY_VOID(outcome_of(run_step(worker, {})));
      const ParameterGatherCounts after = worker.parameter_gather().counts();
      EXPECT_LE(after.exposed_us - before.exposed_us, after.gather_us - before.gather_us);
      shares[static_cast<std::size_t>(worker.rank().communicator.rank())].push_back(
          1.0 - static_cast<double>(after.buckets_awaited - before.buckets_awaited) / bucket_count);
    }
    HF_TRY_VOID(worker.parameter_gather().finish());
    EXPECT_EQ(worker.parameter_gather().counts().buckets, (steps + 2) * bucket_count) << "and the start's";
    return {};
  });
  for (const std::vector<double>& of_rank : shares) EXPECT_GE(*std::ranges::max_element(of_rank), 0.8);
}

INSTANTIATE_TEST_SUITE_P(Recompute, GradientOverlap, testing::Values("none", "selective", "full"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace holdfast::test
