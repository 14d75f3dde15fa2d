#include "runtime/replay/replay_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::HasSubstr;

ParallelConfig layout_of_run() {
  ParallelConfig parallel;
  parallel.lanes = 8;
  parallel.tensor_lanes = 2;
  parallel.data = 2;
  parallel.tensor = 2;
  parallel.pipeline = 2;
  parallel.pipeline_chunks = 2;
  parallel.pipeline_schedule = "interleaved";
  return parallel;
}

TEST(ReplayLayout, IsThatOfTheRunWhereItFits) {
  ParallelConfig parallel = layout_of_run();
  choose_layout(parallel, 4, {});
  EXPECT_EQ(parallel.data, 0);
  EXPECT_EQ(parallel.tensor, 2);
  EXPECT_EQ(parallel.pipeline_chunks, 2);
}

TEST(ReplayLayout, IsDataParallelElse) {
  for (const int ranks : {1, 2, 6}) {
    ParallelConfig parallel = layout_of_run();
    choose_layout(parallel, ranks, {});
    EXPECT_EQ(parallel.data, 0);
    EXPECT_EQ(parallel.tensor, 1);
    EXPECT_EQ(parallel.pipeline, 1);
    EXPECT_EQ(parallel.pipeline_chunks, 1);
    EXPECT_EQ(parallel.pipeline_schedule, "1f1b");
    EXPECT_EQ(parallel.tensor_lanes, 2) << "it decides bits";
  }
}

class ReplayConfigTest : public testing::Test {
 protected:
  static Result<LoadedConfig> with(const std::vector<Override>& overrides) {
    const ReplaySource source{.config =
                                  "[run]\ndirectory = \"there\"\n[model]\nlayers = 2\nheads = 2\nwidth = 32\n"
                                  "[data]\nsources = [{ path = \"a.txt\" }]\n"
                                  "[training]\nsteps = 9\n[parallel]\nlanes = 4\ntensor = 1\npipeline = 2\n"
                                  "[checkpoint]\nevery_steps = 3\n[elastic]\nspares = 1\n",
                              .config_place = "config.toml"};
    return replay_config(posix_env(), source, "here", 2, overrides);
  }
};

TEST_F(ReplayConfigTest, WritesNothing) {
  const Config config = with({}).value().config;
  EXPECT_EQ(config.run.directory, "here");
  EXPECT_EQ(config.checkpoint.every_steps, 0);
  EXPECT_EQ(config.checkpoint.ram_every_steps, 0);
  EXPECT_EQ(config.elastic.spares, 0);
  EXPECT_EQ(config.parallel.pipeline, 2);
}

TEST_F(ReplayConfigTest, TakesWhatChangesNoNumber) {
  const Config config =
      with({{"parallel.data", "2"}, {"data.sources", "[{ path = \"b.txt\" }]"}}).value().config;
  EXPECT_EQ(config.parallel.data, 2);
  EXPECT_EQ(config.parallel.pipeline, 1) << "degrees that are left out are 1";
  EXPECT_EQ(config.data.sources.front().path, "b.txt");
  EXPECT_TRUE(with({{"parallel.lanes", "4"}}).ok()) << "it is what the run has";
}

TEST_F(ReplayConfigTest, RefusesWhatChangesNumbers) {
  for (const Override& each : std::vector<Override>{{"optimizer.learning_rate", "1e-5"},
                                                    {"parallel.lanes", "2"},
                                                    {"training.steps", "10"},
                                                    {"run.seed", "2"},
                                                    {"run.initialize_from", "x"}}) {
    const Result<LoadedConfig> config = with({each});
    ASSERT_FALSE(config.ok()) << each.key;
    EXPECT_EQ(config.error().code, ExitCode::config);
    EXPECT_THAT(config.error().message, HasSubstr("\n  " + each.key + ": "));
  }
}

}  // namespace
}  // namespace holdfast::test
