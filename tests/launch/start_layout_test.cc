// Tests which layout a start has on hosts that have no room for a copy of the model as the run asks for it.
#include "runtime/launch/start_layout.h"

#include <gtest/gtest.h>

#include <ostream>
#include <vector>

#include "runtime/config/loader.h"

namespace holdfast::launch {

static std::ostream& operator<<(std::ostream& out, const StartLayout& layout) {
  return out << layout.ranks << " ranks, pipeline " << layout.pipeline << ", tensor " << layout.tensor;
}

}  // namespace holdfast::launch

namespace holdfast::test {
namespace {

Config run_of(int pipeline, int tensor, int lanes = 4) {
  Config config;
  config.model.layers = 6;
  config.model.heads = 8;
  config.model.width = 64;
  config.training.sequence_length = 32;
  config.parallel.lanes = lanes;
  config.parallel.pipeline = pipeline;
  config.parallel.tensor = tensor;
  EXPECT_TRUE(resolve_config(config, 256).ok());
  return config;
}

// Returns the layout where, of the hosts of a run of so many copies, those with these slots are left.
std::optional<StartLayout> left(const Config& run, std::vector<int> slots, int copies = 1, int min_copies = 1,
                                int min_ranks = 1) {
  std::vector<LaunchHost> hosts = {{.name = "lost", .slots = 8, .answers = false}};
  for (const int count : slots) hosts.push_back({.name = "h", .slots = count});
  const auto per_copy = static_cast<int>(run.parallel.pipeline * run.parallel.tensor);
  return narrower_layout(
      run, hosts,
      {.ranks = copies * per_copy, .per_copy = per_copy, .min_copies = min_copies, .within_slots = true},
      min_ranks);
}

using Layout = std::optional<StartLayout>;

TEST(StartLayout, KeepsTheTensorGroupsThatHaveAHost) {
  EXPECT_EQ(left(run_of(2, 4), {4}), Layout({.ranks = 4, .pipeline = 1, .tensor = 4}));
  EXPECT_EQ(left(run_of(2, 4), {2, 2}), Layout({.ranks = 4, .pipeline = 2, .tensor = 2}));
  EXPECT_EQ(left(run_of(2, 4), {2, 1}), Layout({.ranks = 2, .pipeline = 1, .tensor = 2}));
  EXPECT_EQ(left(run_of(4, 2), {1, 1, 1}), Layout({.ranks = 3, .pipeline = 3, .tensor = 1}));
  EXPECT_EQ(left(run_of(4, 1), {1}), Layout({.ranks = 1, .pipeline = 1, .tensor = 1}));
}

TEST(StartLayout, KeepsTheCopiesThatTheRunMayNotLose) {
  EXPECT_EQ(left(run_of(4, 1), {5}, /*copies=*/2, /*min_copies=*/2),
            Layout({.ranks = 4, .pipeline = 2, .tensor = 1}));
  EXPECT_EQ(left(run_of(4, 1), {1}, /*copies=*/2, /*min_copies=*/2), Layout());
  EXPECT_EQ(left(run_of(4, 2), {3, 3}, /*copies=*/3, /*min_copies=*/1),
            Layout({.ranks = 6, .pipeline = 3, .tensor = 1}))
      << "two copies of three stages: more ranks than any with groups of two";
}

TEST(StartLayout, HasAsManyRanksAsFit) {
  EXPECT_EQ(left(run_of(2, 4), {2}, 1, 1, /*min_ranks=*/3), Layout());
  EXPECT_EQ(left(run_of(2, 4), {4}, 1, 1, /*min_ranks=*/3), Layout({.ranks = 4, .pipeline = 1, .tensor = 4}));
  EXPECT_EQ(left(run_of(2, 4), {}), Layout());
}

TEST(StartLayout, OneStageHasNothingToInterleave) {
  Config run = run_of(2, 1);
  run.parallel.pipeline_schedule = "interleaved";
  run.parallel.pipeline_chunks = 2;
  EXPECT_EQ(left(run, {1}), Layout({.ranks = 1, .pipeline = 1, .tensor = 1}));
}

// Each copy has a lane.
TEST(StartLayout, HasNoMoreCopiesThanTheRunAsksFor) {
  EXPECT_EQ(left(run_of(4, 2, /*lanes=*/1), {7}), Layout({.ranks = 6, .pipeline = 3, .tensor = 2}));
  EXPECT_EQ(left(run_of(4, 2), {7}, /*copies=*/2), Layout({.ranks = 6, .pipeline = 3, .tensor = 2}));
}

}  // namespace
}  // namespace holdfast::test
