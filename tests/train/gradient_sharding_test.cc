// optimizer.shard_gradients: the same bits from less memory.
#include <fmt/core.h>

#include <numeric>

#include "runtime/rank/rank_layout.h"
#include "tests/support/worker_rig.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

class GradientShardingTest : public SameBitsTest {
 protected:
  // The reference, one rank, has whole gradients.
  void expect_sharded(int ranks, const std::vector<std::string>& what,
                      const std::vector<std::string>& how = {}) {
    Launch launch{.run = fmt::format("run{}", runs_++), .ranks = ranks, .overrides = how};
    launch.overrides.push_back("optimizer.shard_gradients=true");
    expect_same_bits(launch, what);
  }

 private:
  int runs_ = 0;
};

TEST_F(GradientShardingTest, AnyNumberOfRanksAndWaves) {
  const std::vector<std::string> what = {"model.layers=5", "parallel.lanes=5"};
  for (const int ranks : {1, 2, 3, 5}) expect_sharded(ranks, what);
}

TEST_F(GradientShardingTest, TiedGpt2WithPositionsInBf16) {
  const std::vector<std::string> what = {"model.style=gpt2", "model.kv_heads=4", "model.head=tied",
                                         "training.precision=bf16"};
  for (const int ranks : {2, 4}) expect_sharded(ranks, what);
  expect_sharded(4, what, {"parallel.pipeline=2"});
}

TEST_F(GradientShardingTest, PipelinesAndTensorLanes) {
  const std::vector<std::string> what = {"model.layers=6", "parallel.lanes=4", "parallel.tensor_lanes=2"};
  expect_sharded(4, what, {"parallel.pipeline=2"});
  expect_sharded(4, what, {"parallel.tensor=2"});
  expect_sharded(8, what, {"parallel.pipeline=2", "parallel.tensor=2"});
  expect_sharded(4, what, {"parallel.pipeline=2", "parallel.pipeline_schedule=zero_bubble"});
  expect_sharded(
      4, what,
      {"parallel.pipeline=2", "parallel.pipeline_schedule=interleaved", "parallel.pipeline_chunks=3"});
}

TEST_F(GradientShardingTest, ChangesBetweenResumes) {
  const std::vector<std::string> what = {"model.layers=4"};
  for (const char* sharded : {"true", "false", "true"}) {
    Launch launch{.run = "changing", .ranks = 2, .stop_after_steps = 5, .overrides = what};
    launch.overrides.push_back(fmt::format("optimizer.shard_gradients={}", sharded));
    const RunEnd end = train(launch);
    ASSERT_EQ(end.code, ExitCode::saved) << end.message;
  }
  expect_sharded(3, what);
}

Config twelve_layers() {
  Config config;
  config.model.layers = 12;
  config.model.heads = 4;
  config.model.width = 64;
  config.training.steps = 2;
  config.training.sequence_length = 16;
  config.training.microbatch_size = 1;
  config.parallel.lanes = 8;
  return config;
}

struct GradientMemory {
  std::vector<std::uint64_t> of_rank;         // bytes: gradients, and those of other lanes that arrive
  std::vector<std::uint64_t> shard_elements;  // by rank: the sums that are its
  std::uint64_t parameters = 0;
};

GradientMemory memory_of(Config config, int ranks) {
  const auto size = static_cast<std::size_t>(ranks);
  GradientMemory memory{.of_rank = std::vector<std::uint64_t>(size),
                        .shard_elements = std::vector<std::uint64_t>(size)};
  test::WorkerRig rig(std::move(config), ranks);
  rig.run([&](Worker& worker) -> Result<void> {
    const auto rank = static_cast<std::size_t>(worker.rank().communicator.rank());
    for (const MemoryClass kind : {MemoryClass::gradients, MemoryClass::communication})
      memory.of_rank[rank] += worker.memory_plan().total_bytes(kind);
    for (const Segment& segment : worker.optimizer().segments())
      memory.shard_elements[rank] += segment.elements;
    if (rank == 0) memory.parameters = parameter_count(worker.workload().spec);
    return {};
  });
  return memory;
}

// Whole: a lane's gradients and those of other ranks' lanes, which is two models. Sharded: the sums that are
// this rank's, and a few buckets.
TEST(GradientSharding, ARankHoldsItsShardAndAFewBuckets) {
  constexpr int ranks = 4;
  Config config = twelve_layers();
  const GradientMemory whole = memory_of(config, ranks);
  config.optimizer.shard_gradients = true;
  const GradientMemory sharded = memory_of(config, ranks);
  const auto sum =
      std::accumulate(sharded.shard_elements.begin(), sharded.shard_elements.end(), std::uint64_t{0});
  EXPECT_EQ(sum, sharded.parameters) << "the shards of all ranks are the model";
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    EXPECT_LT(2 * sharded.of_rank[rank], whole.of_rank[rank]) << "rank " << rank;
    EXPECT_LT(sharded.of_rank[rank], sharded.parameters * sizeof(float)) << "rank " << rank;
  }
}

TEST(GradientSharding, SaysWhyItSavesNothing) {
  Config config = twelve_layers();
  EXPECT_EQ(why_gradients_are_whole(config, 1), "");
  EXPECT_EQ(gradient_slots(config, 2), 0);
  config.optimizer.shard_gradients = true;
  EXPECT_EQ(why_gradients_are_whole(config, 2), "");
  EXPECT_GT(gradient_slots(config, 2), 1);
  EXPECT_NE(why_gradients_are_whole(config, 1).find("without data parallelism"), std::string::npos);
  EXPECT_EQ(gradient_slots(config, 1), 0);
  config.training.microbatches_per_lane = 2;
  EXPECT_NE(why_gradients_are_whole(config, 2).find("training.microbatches_per_lane = 2"), std::string::npos);
  EXPECT_EQ(gradient_slots(config, 2), 0);
}

}  // namespace
}  // namespace holdfast::test
