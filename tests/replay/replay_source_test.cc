#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/replay/replay_source.h"
#include "runtime/run/log_reader.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

// 0 until step 100, then 1 until 150, where 2 went on; 3 went back to step 120 of 1.
Lineage branched() {
  return {.run_id = std::string(32, '7'),
          .generations = {{.number = 1, .parent = {.generation = 0, .step = 100}},
                          {.number = 2, .parent = {.generation = 1, .step = 150}},
                          {.number = 3, .parent = {.generation = 1, .step = 120}}}};
}

TEST(GenerationOfStep, IsThatOfTheRunAsItGoesOn) {
  for (const std::uint64_t step : {1U, 100U}) EXPECT_EQ(generation_of_step(branched(), step), 0U);
  for (const std::uint64_t step : {101U, 120U}) EXPECT_EQ(generation_of_step(branched(), step), 1U);
  for (const std::uint64_t step : {121U, 160U}) EXPECT_EQ(generation_of_step(branched(), step), 3U);
  EXPECT_EQ(generation_of_step({}, 5), 0U);
}

TEST(LeadsToStep, OnlyStatesOfItsGenerationAndTheOneItBeganFrom) {
  const struct {
    std::uint64_t generation, step, wanted;
    bool leads;
  } cases[] = {{0, 50, 60, true},    {0, 60, 60, false},   {0, 99, 101, false},  {0, 100, 101, true},
               {1, 110, 115, true},  {1, 110, 121, false}, {1, 120, 121, true},  {1, 130, 140, false},
               {2, 155, 160, false}, {3, 125, 160, true},  {3, 160, 160, false}, {1, 115, 110, false}};
  for (const auto& each : cases) {
    EXPECT_EQ(leads_to_step(branched(), {.generation = each.generation, .step = each.step}, each.wanted),
              each.leads)
        << each.generation << " " << each.step << " " << each.wanted;
  }
  EXPECT_TRUE(leads_to_step({}, {.generation = 0, .step = 4}, 5));
}

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double none = std::numeric_limits<double>::quiet_NaN();

std::string start_line(std::string_view run, std::uint64_t generation, std::uint64_t resumed_from) {
  return fmt::format(
      "{{\"event\":\"start\",\"time_us\":1,\"run\":\"{}\",\"generation\":{},\"resumed_from_step\":{}}}\n",
      run, generation, resumed_from == 0 ? "null" : std::to_string(resumed_from));
}

std::string step_line(std::uint64_t step, std::string_view loss) {
  return fmt::format(
      "{{\"event\":\"step\",\"time_us\":1,\"step\":{},\"loss\":{},\"grad_norm\":2.5,\"learning_rate\":0.1,"
      "\"data_digest\":\"000000000000000000000000000000{:02x}\",\"step_duration_ms\":4.0}}\n",
      step, loss, step);
}

class RecordedStepsTest : public testing::Test {
 protected:
  RecordedSteps read(const std::string& text, std::uint64_t first, std::uint64_t last) {
    EXPECT_TRUE(posix_env().replace_text(paths_.events(), text).ok());
    return read_recorded_steps(posix_env(), paths_, first, last).value();
  }
  static std::vector<std::uint64_t> steps_of(const RecordedSteps& recorded) {
    std::vector<std::uint64_t> steps;
    for (const auto& each : recorded.steps) steps.push_back(each.first);
    return steps;
  }

  TemporaryDirectory directory_;
  RunPaths paths_{directory_.path()};
};

TEST_F(RecordedStepsTest, TheLastLineOfAStepCounts) {
  const RecordedSteps recorded = read(start_line("a", 0, 0) + step_line(1, "1.5") + step_line(2, "1.25") +
                                          start_line("a", 0, 1) + step_line(2, "1.125") + "{\"event\":\"st",
                                      1, 2);
  EXPECT_EQ(recorded.newest, 2U);
  ASSERT_THAT(steps_of(recorded), ElementsAre(1, 2));
  EXPECT_EQ(recorded.steps.at(2).numbers.loss, 1.125);
  EXPECT_EQ(recorded.steps.at(2).numbers.grad_norm, 2.5);
  EXPECT_EQ(recorded.steps.at(2).numbers.learning_rate, 0.1);
  EXPECT_EQ(recorded.steps.at(2).numbers.data, (Digest{.high = 0, .low = 2}));
  EXPECT_EQ(recorded.steps.at(2).duration_ms, 4.0);
  EXPECT_THAT(recorded.warning, IsEmpty());
}

TEST_F(RecordedStepsTest, OnlyTheWantedRange) {
  std::string text;
  for (std::uint64_t step = 1; step <= 9; ++step) text += step_line(step, "1.0");
  const RecordedSteps recorded = read(text, 4, 6);
  EXPECT_EQ(recorded.newest, 9U);
  EXPECT_THAT(steps_of(recorded), ElementsAre(4, 5, 6));
}

TEST_F(RecordedStepsTest, AGenerationLeavesTheStepsBeyondItsBegin) {
  const std::string before =
      start_line("a", 0, 0) + step_line(1, "1.0") + step_line(2, "1.0") + step_line(3, "1.0");
  const RecordedSteps begun = read(before + start_line("a", 1, 1), 1, 9);
  EXPECT_EQ(begun.newest, 1U);
  EXPECT_THAT(steps_of(begun), ElementsAre(1));
  const RecordedSteps made = read(before + start_line("a", 1, 1) + step_line(2, "3.0"), 1, 9);
  EXPECT_EQ(made.newest, 2U);
  EXPECT_EQ(made.steps.at(2).numbers.loss, 3.0);
  // Another run in the same directory.
  EXPECT_EQ(read(before + start_line("b", 0, 0), 1, 9).newest, 0U);
}

TEST_F(RecordedStepsTest, SaysThatAPartIsMissing) {
  ASSERT_TRUE(posix_env().replace_text(event_part(paths_.events(), 2), step_line(4, "1.0")).ok());
  const RecordedSteps recorded = read(step_line(5, "1.0"), 1, 9);
  EXPECT_THAT(steps_of(recorded), ElementsAre(4, 5));
  EXPECT_THAT(recorded.warning, HasSubstr("is missing"));
}

TEST_F(RecordedStepsTest, WithoutALogThereIsNoRun) {
  const Result<RecordedSteps> recorded = read_recorded_steps(posix_env(), paths_, 1, 1);
  ASSERT_FALSE(recorded.ok());
  EXPECT_EQ(recorded.error().code, ExitCode::config);
}

TEST_F(RecordedStepsTest, NullIsNotFinite) {
  const RecordedSteps recorded = read(step_line(1, "null"), 1, 1);
  const RecordedNumbers& there = recorded.steps.at(1).numbers;
  EXPECT_TRUE(std::isnan(there.loss));
  RecordedNumbers here = there;
  here.loss = std::numeric_limits<double>::infinity();
  EXPECT_THAT(differing_numbers(there, here), IsEmpty());
  here.loss = 1.0;
  EXPECT_THAT(differing_numbers(there, here), ElementsAre("loss"));
}

TEST(DifferingNumbers, ComparesBits) {
  const RecordedNumbers one{
      .loss = 1.0, .grad_norm = 0.0, .learning_rate = 0.5, .data = {.high = 1, .low = 2}};
  EXPECT_THAT(differing_numbers(one, one), IsEmpty());
  RecordedNumbers other = one;
  other.loss = std::nextafter(1.0, 2.0);
  other.grad_norm = -0.0;
  other.learning_rate = none;
  other.data.low = 3;
  EXPECT_THAT(differing_numbers(one, other), ElementsAre("loss", "grad_norm", "learning_rate", "data"));
}

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
