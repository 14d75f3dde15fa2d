// Promise 1 with tensor parallelism: for fixed lanes and tensor lanes the same bits in every layout of up to
// eight ranks, in every part of a run.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

class TensorTest : public SameBitsTest {
 protected:
  struct Layout {
    int data = 1, pipeline = 1, tensor = 1;
    int ranks() const { return data * pipeline * tensor; }
  };

  void expect_layout(const Layout& layout, const std::vector<std::string>& what,
                     const std::vector<std::string>& how = {}) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", layout.data, layout.pipeline, layout.tensor));
    Launch launch{.run = fmt::format("run{}", runs_++), .ranks = layout.ranks(), .overrides = how};
    launch.overrides.push_back(fmt::format("parallel.pipeline={}", layout.pipeline));
    launch.overrides.push_back(fmt::format("parallel.tensor={}", layout.tensor));
    expect_same_bits(launch, what);
  }

  // Every data, pipeline and tensor degree whose product is at most eight.
  void expect_all_layouts(const std::vector<std::string>& what) {
    for (const int tensor : {1, 2, 4, 8}) {
      for (int pipeline = 1; tensor * pipeline <= 8; ++pipeline) {
        for (int data = 1; tensor * pipeline * data <= 8; ++data)
          expect_layout({.data = data, .pipeline = pipeline, .tensor = tensor}, what);
      }
    }
  }

  // Every power of two of every axis, and any two axes together: of what expect_all_layouts() tries, what may
  // go wrong in one model and not in another.
  void expect_corner_layouts(const std::vector<std::string>& what) {
    const Layout layouts[] = {{.data = 8},
                              {.pipeline = 8},
                              {.tensor = 8},
                              {.data = 2, .pipeline = 2, .tensor = 2},
                              {.data = 2, .pipeline = 4},
                              {.data = 4, .tensor = 2},
                              {.pipeline = 2, .tensor = 4}};
    for (const Layout& layout : layouts) expect_layout(layout, what);
  }

 private:
  int runs_ = 0;
};

// Eight ranks on a small machine wait for each other more than they compute, so the steps are few: an order
// of sums that differs shows in the first.
const std::vector<std::string> few_steps = {"training.steps=4", "optimizer.warmup_steps=2",
                                            "evaluation.every_steps=2"};
const std::vector<std::string> eight_slices = {
    "model.layers=6",   "model.heads=8",           "model.kv_heads=8",    "model.width=64",
    "parallel.lanes=8", "parallel.tensor_lanes=8", "evaluation.batches=3"};

std::vector<std::string> with(std::vector<std::string> what, const std::vector<std::string>& more) {
  what.insert(what.end(), more.begin(), more.end());
  return what;
}

TEST_F(TensorTest, TwoSlicesOnOneAndTwoRanks) {
  const std::vector<std::string> what = {"parallel.tensor_lanes=2"};
  expect_layout({.tensor = 2}, what);
  expect_layout({.data = 2, .tensor = 2}, what);
  expect_layout({.data = 2, .tensor = 1}, what);
}

TEST_F(TensorTest, LayoutsOfFrozenLayers) {
  expect_corner_layouts(
      with(with(eight_slices, few_steps), {"model.freeze=[\"embedding\", \"layers 0-2\"]"}));
}

TEST_F(TensorTest, LayoutsOfFrozenMatrices) {
  expect_corner_layouts(
      with(with(eight_slices, few_steps),
           {"model.style=gpt2", "model.freeze=[\"all but biases and norms\", \"layer 1\"]"}));
}

TEST_F(TensorTest, LayoutsOfAdapters) {
  expect_corner_layouts(with(with(eight_slices, few_steps), {"lora.rank=4", "lora.alpha=8"}));
}

const std::vector<std::string> some_adapters = {"model.kv_heads=4",
                                                "model.layers=4",
                                                "parallel.tensor_lanes=2",
                                                "training.precision=bf16",
                                                "training.microbatches_per_lane=2",
                                                "lora.rank=3"};
TEST_F(TensorTest, LayoutsOfSomeAdaptersOfGpt2InBf16) {
  const std::vector<std::string> what =
      with(with(some_adapters, few_steps), {"model.style=gpt2", "lora.targets=[\"qkv\", \"down\"]"});
  for (const int tensor : {1, 2}) expect_layout({.pipeline = 2, .tensor = tensor}, what);
  expect_layout({.data = 3, .tensor = 2}, what);
}

TEST_F(TensorTest, LayoutsOfSomeAdaptersOfQwen3InBf16) {
  const std::vector<std::string> what =
      with(with(some_adapters, few_steps), {"model.style=qwen3", "lora.targets=[\"k\", \"o\", \"gate\"]"});
  for (const int tensor : {1, 2}) expect_layout({.pipeline = 2, .tensor = tensor}, what);
  expect_layout({.data = 3, .tensor = 2}, what);
}

TEST_F(TensorTest, EveryLayoutOfLlama) {
  expect_all_layouts(with(eight_slices, few_steps));
}

TEST_F(TensorTest, LayoutsOfTiedLlama) {
  expect_corner_layouts(with(with(eight_slices, few_steps), {"model.head=tied"}));
}

TEST_F(TensorTest, LayoutsOfBiasesOfQueriesKeysAndValues) {
  expect_corner_layouts(with(with(eight_slices, few_steps), {"model.style=qwen2", "model.head=tied"}));
}

TEST_F(TensorTest, LayoutsOfNormsOfHeads) {
  expect_corner_layouts(with(with(eight_slices, few_steps), {"model.style=qwen3", "model.head_size=16"}));
}

TEST_F(TensorTest, LayoutsOfFrozenNormsOfHeads) {
  const std::vector<std::string> what =
      with(few_steps, {"model.style=qwen3", "model.head_size=16", "model.kv_heads=4", "model.layers=4",
                       "parallel.tensor_lanes=2", "model.freeze=[\"embedding\", \"layers 0-1\"]"});
  for (const int tensor : {1, 2}) expect_layout({.pipeline = 2, .tensor = tensor}, what);
  expect_layout({.data = 3, .tensor = 2}, what);
}

TEST_F(TensorTest, NormsOfHeadsInBf16WithGroupedQueriesAndAnySchedule) {
  const std::vector<std::string> what =
      with(few_steps, {"model.style=qwen3", "model.heads=8", "model.kv_heads=4", "model.head_size=12",
                       "model.width=64", "model.head=tied", "model.layers=4", "training.precision=bf16",
                       "parallel.tensor_lanes=4", "training.microbatches_per_lane=2"});
  for (const char* recompute : {"none", "selective", "full"}) {
    const std::string how = fmt::format("training.recompute={}", recompute);
    expect_layout({.tensor = 4}, what, {how});
    expect_layout({.data = 2, .pipeline = 2, .tensor = 2}, what,
                  {how, "parallel.pipeline_schedule=zero_bubble"});
    expect_layout({.pipeline = 2, .tensor = 1}, what,
                  {how, "parallel.pipeline_schedule=interleaved", "parallel.pipeline_chunks=2"});
  }
}

TEST_F(TensorTest, LayoutsOfTiedGpt2) {
  expect_corner_layouts(with(with(eight_slices, few_steps), {"model.style=gpt2"}));
}

TEST_F(TensorTest, LayoutsOfUntiedGpt2) {
  expect_corner_layouts(with(with(eight_slices, few_steps), {"model.style=gpt2", "model.head=untied"}));
}

// Every model in every layout, over more steps: minutes (tools/test --long).
class EveryLayoutTest : public TensorTest, public testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(EveryLayoutTest, DISABLED_LongRuns) {
  expect_all_layouts(with(eight_slices, GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Models, EveryLayoutTest,
                         testing::Values(std::vector<std::string>{},
                                         std::vector<std::string>{"model.head=tied"},
                                         std::vector<std::string>{"model.style=gpt2"},
                                         std::vector<std::string>{"model.style=gpt2", "model.head=untied"}));

TEST_F(TensorTest, TiedLlamaInBf16WithGroupedQueries) {
  const std::vector<std::string> what = with(
      few_steps, {"model.heads=8", "model.kv_heads=4", "model.width=64", "model.head=tied", "model.layers=3",
                  "training.precision=bf16", "parallel.tensor_lanes=4", "training.microbatches_per_lane=2"});
  for (const int tensor : {2, 4}) expect_layout({.tensor = tensor}, what);
  expect_layout({.pipeline = 3, .tensor = 2}, what);
  expect_layout({.data = 3, .tensor = 2}, what);
}

TEST_F(TensorTest, UntiedGpt2WithPaddingSlices) {
  const std::vector<std::string> what =
      with(few_steps, {"model.style=gpt2", "model.kv_heads=4", "model.head=untied", "model.vocabulary=260",
                       "parallel.tensor_lanes=4", "model.layers=2"});
  for (const int tensor : {2, 4}) expect_layout({.tensor = tensor}, what);
  expect_layout({.data = 1, .pipeline = 2, .tensor = 4}, what);
}

TEST_F(TensorTest, SixteenSlicesOfOneRowEach) {
  const std::vector<std::string> what = {"model.heads=16",
                                         "model.kv_heads=16",
                                         "model.width=64",
                                         "training.sequence_length=16",
                                         "training.microbatch_size=1",
                                         "parallel.tensor_lanes=16",
                                         "parallel.lanes=2",
                                         "evaluation.batches=2"};
  for (const int tensor : {4, 16}) expect_layout({.tensor = tensor}, what);
}

// Every layout of up to eight ranks that has a pipeline.
TEST_F(TensorTest, EverySchedule) {
  const std::vector<std::string> what =
      with(few_steps, {"model.layers=6", "model.kv_heads=4", "training.microbatches_per_lane=3",
                       "parallel.lanes=3", "parallel.tensor_lanes=4"});
  const std::vector<std::vector<std::string>> schedules = {
      {"parallel.pipeline_schedule=zero_bubble"},
      {"parallel.pipeline_schedule=interleaved", "parallel.pipeline_chunks=2"}};
  for (const std::vector<std::string>& schedule : schedules) {
    for (const int tensor : {1, 2, 4}) {
      for (const int pipeline : {2, 3, 4}) {
        for (int data = 1; data * pipeline * tensor <= 8 && data <= 3; ++data)
          expect_layout({.data = data, .pipeline = pipeline, .tensor = tensor}, what, schedule);
      }
    }
  }
  expect_layout({.pipeline = 2, .tensor = 2}, what, {"parallel.pipeline_schedule=gpipe"});
}

TEST_F(TensorTest, AnyRecompute) {
  const std::vector<std::string> what = {"model.layers=3", "parallel.tensor_lanes=2"};
  for (const char* mode : {"selective", "full"}) {
    expect_layout({.tensor = 2}, what, {fmt::format("training.recompute={}", mode)});
    expect_layout({.tensor = 1}, what, {fmt::format("training.recompute={}", mode)});
    expect_layout({.pipeline = 2, .tensor = 2}, what,
                  {fmt::format("training.recompute={}", mode), "parallel.pipeline_schedule=zero_bubble"});
  }
}

TEST_F(TensorTest, LayoutsChangeBetweenResumes) {
  const std::vector<std::string> what =
      with(eight_slices, {"model.layers=2", "model.head=tied", "parallel.lanes=4"});
  const Layout layouts[] = {
      {.tensor = 8}, {.data = 3}, {.pipeline = 2, .tensor = 4}, {.data = 4, .tensor = 2}};
  for (const Layout& layout : layouts) {
    Launch launch{.run = "changing", .ranks = layout.ranks(), .stop_after_steps = 5, .overrides = what};
    launch.overrides.push_back(fmt::format("parallel.pipeline={}", layout.pipeline));
    launch.overrides.push_back(fmt::format("parallel.tensor={}", layout.tensor));
    const RunEnd end = train(launch);
    ASSERT_TRUE(end.code == ExitCode::saved || end.code == ExitCode::done) << end.message;
  }
  expect_same_bits({.run = "changing", .ranks = 2, .overrides = {"parallel.tensor=2"}}, what);
}

// The slices decide the order of sums and nothing else.
TEST_F(TensorTest, OtherNumbersOfSlicesDifferByRoundingAlone) {
  const auto loss_of = [&](int slices) {
    const std::string run = fmt::format("slices{}", slices);
    const RunEnd end =
        train({.run = run,
               .overrides = with(eight_slices, {"optimizer.learning_rate=1e-3",
                                                fmt::format("parallel.tensor_lanes={}", slices)})});
    EXPECT_EQ(end.code, ExitCode::done) << end.message;
    return evaluations(run);
  };
  const std::map<std::uint64_t, double> whole = loss_of(1);
  ASSERT_EQ(whole.size(), 2u);
  for (const int slices : {2, 4, 8}) {
    for (const auto& [step, loss] : loss_of(slices))
      EXPECT_NEAR(loss / whole.at(step), 1.0, 1e-5) << slices << " slices, step " << step;
  }
}

TEST_F(TensorTest, SlicesStayWithTheRunWhereNoneAreGiven) {
  const std::vector<std::string> two = {"parallel.tensor_lanes=2"};
  ASSERT_EQ(train({.run = "whole", .overrides = two}).code, ExitCode::done);
  ASSERT_EQ(train({.run = "fixed", .stop_after_steps = 2, .overrides = two}).code, ExitCode::saved);
  ASSERT_EQ(train({.run = "fixed"}).code, ExitCode::done);
  EXPECT_EQ(digest("fixed"), digest("whole"));
}

TEST_F(TensorTest, SlicesThatDoNotFitAreRefused) {
  const RunEnd end = train({.run = "refused", .ranks = 4, .overrides = {"parallel.tensor=4"}});
  EXPECT_EQ(end.code, ExitCode::config);
  EXPECT_NE(end.message.find("does not divide model.kv_heads = 2"), std::string::npos) << end.message;
}

}  // namespace
}  // namespace holdfast::test
