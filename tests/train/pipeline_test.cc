// Promise 1 with a pipeline: the same bits, whatever the number of stages, the schedule, and the replicas
// beside it.
#include <fmt/core.h>

#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

class PipelineTest : public SameBitsTest {
 protected:
  // `ranks` in `stages` stages; the reference is one rank without a pipeline.
  void expect_pipeline(int ranks, int stages, const std::vector<std::string>& what,
                       const std::vector<std::string>& how = {}) {
    Launch launch{.run = fmt::format("r{}p{}-{}", ranks, stages, runs_++),
                  .ranks = ranks,
                  .overrides = {fmt::format("parallel.pipeline={}", stages)}};
    launch.overrides.insert(launch.overrides.end(), how.begin(), how.end());
    std::vector<std::string> brief = {"training.steps=8", "optimizer.warmup_steps=3",
                                      "evaluation.every_steps=4"};
    brief.insert(brief.end(), what.begin(), what.end());
    expect_same_bits(launch, brief);
  }
  static std::vector<std::string> with(std::vector<std::string> how, const std::string& more) {
    how.push_back(more);
    return how;
  }

 private:
  int runs_ = 0;
};

const std::vector<std::string> zero_bubble = {"parallel.pipeline_schedule=zero_bubble"};

TEST_F(PipelineTest, AnyNumberOfStagesAndReplicas) {
  const std::vector<std::string> what = {"model.layers=5"};
  for (const int stages : {2, 3, 5}) expect_pipeline(stages, stages, what);
  for (const int replicas : {2, 3, 4}) expect_pipeline(2 * replicas, 2, what);
}

TEST_F(PipelineTest, SeveralMicrobatchesInEverySchedule) {
  const std::vector<std::string> what = {"model.layers=4", "training.microbatches_per_lane=3",
                                         "parallel.lanes=5"};
  for (const char* schedule : {"1f1b", "gpipe"}) {
    for (const int stages : {2, 4}) {
      expect_pipeline(stages, stages, what, {fmt::format("parallel.pipeline_schedule={}", schedule)});
      expect_pipeline(2 * stages, stages, what, {fmt::format("parallel.pipeline_schedule={}", schedule)});
    }
  }
}

TEST_F(PipelineTest, SeveralChunksOnAStage) {
  const std::vector<std::string> what = {"model.layers=6", "training.microbatches_per_lane=3",
                                         "parallel.lanes=5", "model.head=tied"};
  for (const int chunks : {2, 3}) {
    const std::vector<std::string> how = {fmt::format("parallel.pipeline_chunks={}", chunks),
                                          "parallel.pipeline_schedule=interleaved"};
    expect_pipeline(2, 2, what, how);
    expect_pipeline(6, 2, what, how);
  }
  expect_pipeline(3, 3, what, {"parallel.pipeline_chunks=2", "parallel.pipeline_schedule=interleaved"});
}

// Four stages of two layers: the ends are stages of their own, or share one with a layer.
TEST_F(PipelineTest, StagesWithoutLayers) {
  expect_pipeline(4, 4, {"training.microbatches_per_lane=2", "model.vocabulary=300"});
}

class SplitBackwardTest : public PipelineTest, public testing::WithParamInterface<int> {};

TEST_P(SplitBackwardTest, AnyNumberOfStagesAndReplicas) {
  const std::vector<std::string> what = {"model.layers=5", "parallel.lanes=5",
                                         fmt::format("training.microbatches_per_lane={}", GetParam())};
  for (const int stages : {2, 3, 4, 5}) expect_pipeline(stages, stages, what, zero_bubble);
  for (const int replicas : {2, 3}) expect_pipeline(2 * replicas, 2, what, zero_bubble);
  expect_pipeline(6, 3, what, zero_bubble);
}

INSTANTIATE_TEST_SUITE_P(MicrobatchesPerLane, SplitBackwardTest, testing::Values(1, 2, 3, 4));

// The stages at the ends have no layer: what arrives is what is sent, and the head stands alone.
TEST_F(PipelineTest, SplitBackwardsWithoutLayers) {
  expect_pipeline(4, 4, {"training.microbatches_per_lane=2", "model.vocabulary=300"}, zero_bubble);
}

TEST_F(PipelineTest, SplitBackwardsInAnyRecompute) {
  const std::vector<std::string> what = {"model.layers=4", "training.microbatches_per_lane=3"};
  for (const char* mode : {"selective", "full"}) {
    for (const int stages : {2, 3}) {
      expect_pipeline(stages, stages, what, with(zero_bubble, fmt::format("training.recompute={}", mode)));
    }
  }
}

// The ends of a tied weight are on two stages, and every stage but the first has other parameters than one
// rank.
TEST_F(PipelineTest, TiedGpt2InBf16) {
  const std::vector<std::string> what = {"model.style=gpt2", "model.kv_heads=4", "model.layers=3",
                                         "training.precision=bf16", "training.microbatches_per_lane=2"};
  for (const std::vector<std::string>& how : {std::vector<std::string>{}, zero_bubble}) {
    for (const int stages : {2, 3}) expect_pipeline(stages, stages, what, how);
    expect_pipeline(6, 2, what, how);
    expect_pipeline(8, 2, what, how);  // one wave: gradients are summed in place
  }
}

// Stages on which everything is frozen pass on what they have, and send no gradient and no updated weight. A
// frozen tied weight is on two stages all the same.
TEST_F(PipelineTest, FrozenStages) {
  const std::vector<std::string> what = {"model.layers=4", "model.head=tied",
                                         "training.microbatches_per_lane=3", "parallel.lanes=3",
                                         "model.freeze=[\"embedding\", \"layers 0-1\"]"};
  for (const int stages : {2, 4}) expect_pipeline(stages, stages, what);
  expect_pipeline(6, 6, what, zero_bubble);
  expect_pipeline(4, 2, what, with(zero_bubble, "training.recompute=selective"));
  expect_pipeline(6, 2, what, {"parallel.pipeline_chunks=2", "parallel.pipeline_schedule=interleaved"});
}

TEST_F(PipelineTest, FrozenMatricesInStages) {
  const std::vector<std::string> what = {"model.style=gpt2", "model.kv_heads=4", "model.layers=3",
                                         "training.precision=bf16", "model.freeze=all but biases and norms"};
  expect_pipeline(2, 2, what);
  expect_pipeline(6, 3, what, zero_bubble);
}

TEST_F(PipelineTest, AdaptersInStages) {
  const std::vector<std::string> what = {
      "model.layers=4",   "model.head=tied", "training.precision=bf16",    "training.microbatches_per_lane=3",
      "parallel.lanes=3", "lora.rank=3",     "lora.targets=[\"q\", \"v\"]"};
  for (const int stages : {2, 4}) expect_pipeline(stages, stages, what);
  expect_pipeline(4, 2, what, with(zero_bubble, "training.recompute=selective"));
  expect_pipeline(6, 2, what, {"parallel.pipeline_chunks=2", "parallel.pipeline_schedule=interleaved"});
}

TEST_F(PipelineTest, AnyRecompute) {
  const std::vector<std::string> what = {"model.layers=4", "training.microbatches_per_lane=4"};
  for (const char* mode : {"selective", "full"})
    expect_pipeline(4, 2, what, {fmt::format("training.recompute={}", mode)});
}

TEST_F(PipelineTest, LayoutsChangeBetweenResumes) {
  const std::vector<std::string> what = {"model.layers=4", "model.head=tied"};
  struct Layout {
    int ranks, stages;
    const char* schedule = "1f1b";
  };
  for (const Layout layout :
       {Layout{4, 4}, Layout{3, 1}, Layout{3, 3, "zero_bubble"}, Layout{4, 2}, Layout{3, 3, "gpipe"}}) {
    Launch launch{.run = "changing", .ranks = layout.ranks, .stop_after_steps = 4, .overrides = what};
    launch.overrides.push_back(fmt::format("parallel.pipeline={}", layout.stages));
    launch.overrides.push_back(fmt::format("parallel.pipeline_schedule={}", layout.schedule));
    const RunEnd end = train(launch);
    ASSERT_TRUE(end.code == ExitCode::saved || end.code == ExitCode::done) << end.message;
  }
  expect_same_bits({.run = "changing", .ranks = 2, .overrides = with(zero_bubble, "parallel.pipeline=2")},
                   what);
}

TEST_F(PipelineTest, MoreStagesThanLayersAreRefused) {
  const RunEnd end = train({.run = "refused", .ranks = 5, .overrides = {"parallel.pipeline=5"}});
  EXPECT_EQ(end.code, ExitCode::config);
  EXPECT_NE(end.message.find("parallel.pipeline = 5 is more than model.layers = 2 + 2"), std::string::npos)
      << end.message;
}

}  // namespace
}  // namespace holdfast::test
