// Bubbles and shares of steps whose times are known.
#include "runtime/report/step_analysis.h"

#include <gtest/gtest.h>

#include "tests/report/made_up_trace.h"

namespace holdfast::test {
namespace {

std::vector<PipelineTimes> analyse_made_up(const MadeUpRun& run) {
  return analyse(merge_ranks(made_up_ranks(run)).value());
}

TEST(Bubble, OfEqualPartsIsThatOfTheFormula) {
  using enum ScheduleKind;
  struct Case {
    ScheduleShape shape;
    double share;
  };
  const std::vector<Case> cases = {
      {{.kind = one_forward_one_backward, .stages = 1, .microbatches_per_lane = 4}, 0.0},
      {{.kind = one_forward_one_backward, .stages = 2, .microbatches_per_lane = 4}, 1.0 / 5},
      {{.kind = gpipe, .stages = 4, .microbatches_per_lane = 8}, 3.0 / 11},
      {{.kind = interleaved, .stages = 2, .chunks = 2, .microbatches_per_lane = 4}, 1.0 / 9},
  };
  for (const Case& one : cases) {
    const std::vector<PipelineTimes> pipelines = analyse_made_up({.shape = one.shape});
    ASSERT_EQ(pipelines.size(), 1u);
    EXPECT_NEAR(pipelines[0].measured_share(), one.share, 1e-9);
    EXPECT_NEAR(pipelines[0].replayed_share, one.share, 1e-9);
    EXPECT_NEAR(pipelines[0].formula_share, one.share, 1e-9);
  }
}

// A weight gradient apart from the input gradient counts as what it is.
TEST(Bubble, OfASplitBackward) {
  const std::vector<PipelineTimes> pipelines =
      analyse_made_up({.shape = {.kind = ScheduleKind::zero_bubble, .stages = 4, .microbatches_per_lane = 8},
                       .forward_ns = 1000,
                       .backward_ns = 2000});
  EXPECT_NEAR(pipelines[0].measured_share(), 3.0 / 27, 1e-9);
  EXPECT_NEAR(pipelines[0].replayed_share, 3.0 / 27, 1e-9);
}

// The replay takes the time that was worked, whoever else had the processor.
TEST(Bubble, ReplayedIsOfTheWork) {
  MadeUpRun run{.shape = {.stages = 2, .microbatches_per_lane = 3}};
  std::vector<RankTrace> ranks = made_up_ranks(run);
  for (Span& span : ranks[1].spans) {  // rank 1 takes as long and works half as much
    if (is_forward_or_backward(span.kind)) span.end.worked_ns /= 2;
  }
  const std::vector<PipelineTimes> pipelines = analyse(merge_ranks(std::move(ranks)).value());
  EXPECT_NEAR(pipelines[0].measured_share(), 1.0 / 4, 1e-9);
  // Stage 0 works 3 x 3000 ns, stage 1 half of that; between stage 0's forwards and backwards it waits for
  // the last microbatch on stage 1 only where that is not there yet.
  const std::vector<PartDurations> parts = {{1000, 2000, 0}, {500, 1000, 0}};
  EXPECT_NEAR(pipelines[0].replayed_share, schedule_time(make_schedule(run.shape), parts, 0.0).bubble_share(),
              1e-9);
  EXPECT_NE(pipelines[0].replayed_share, pipelines[0].formula_share);
}

TEST(Bubble, EachCopyOfTheModelHasItsOwn) {
  std::vector<RankTrace> ranks =
      made_up_ranks({.shape = {.stages = 2, .microbatches_per_lane = 4}, .data = 2});
  std::swap(ranks[1].header.clock.offset_ns, ranks[2].header.clock.offset_ns);
  const std::vector<PipelineTimes> pipelines = analyse(merge_ranks(std::move(ranks)).value());
  ASSERT_EQ(pipelines.size(), 2u);
  for (const PipelineTimes& pipeline : pipelines) {
    EXPECT_NEAR(pipeline.measured_share(), 1.0 / 5, 1e-9);
    ASSERT_EQ(pipeline.steps.front().stages.size(), 2u);
    EXPECT_EQ(pipeline.steps.front().stages[1].rank, 2 * pipeline.data + 1);
  }
}

TEST(HostShare, IsOfTheWorkOfForwardAndBackward) {
  std::vector<RankTrace> ranks = made_up_ranks({.shape = {.stages = 2, .microbatches_per_lane = 4}});
  for (RankTrace& rank : ranks) {
    for (Span& span : rank.spans) {
      if (span.kind == SpanKind::step)
        span.end.worked_ns = span.begin.worked_ns + 120 * (1 + rank.header.rank);
    }
  }
  EXPECT_NEAR(analyse(merge_ranks(std::move(ranks)).value())[0].host_share(), 360.0 / 24'000, 1e-12);
}

TEST(Shares, AddUpToTheStep) {
  const std::vector<PipelineTimes> pipelines =
      analyse_made_up({.shape = {.stages = 2, .microbatches_per_lane = 4}});
  const PipelineStep& step = pipelines[0].steps[0];
  for (const RankStep& rank : step.stages) {
    std::int64_t sum = rank.other_ns;
    for (const std::int64_t spent_ns : rank.spent_ns) sum += spent_ns;
    EXPECT_EQ(sum, rank.step.duration_ns());
    EXPECT_EQ(rank.spent_ns[static_cast<std::size_t>(SpanKind::wait_vote)], 300);
    EXPECT_EQ(rank.forward_backward_ns(), 4 * 3000);
  }
  EXPECT_EQ(step.window.duration_ns(), 5 * 3000);
  for (const RankShares& rank : rank_shares(pipelines[0])) {
    double sum = rank.other;
    for (const double share : rank.spent) sum += share;
    EXPECT_NEAR(sum, 1.0, 1e-12);
  }
}

// A gap is cut at the waits in it; a wait while the device computes counts for nothing.
TEST(AnalyseRank, CutsIdleTimeAtTheWaits) {
  RankTrace rank;
  const auto add = [&](SpanKind kind, std::int64_t begin_ns, std::int64_t end_ns) {
    rank.spans.push_back(span_at(kind, 1, begin_ns, end_ns));
  };
  add(SpanKind::step, 1000, 2000);
  add(SpanKind::wait_activation, 1000, 1100);
  add(SpanKind::forward, 1120, 1400);
  add(SpanKind::wait_gradient, 1200, 1500);
  add(SpanKind::wait_lanes, 1500, 1550);
  add(SpanKind::backward, 1600, 1900);
  add(SpanKind::wait_vote, 1850, 1990);
  const RankStep step = analyse_rank(rank, 1);
  const auto spent = [&](SpanKind kind) { return step.spent_ns[static_cast<std::size_t>(kind)]; };
  EXPECT_EQ(spent(SpanKind::wait_activation), 100);
  EXPECT_EQ(spent(SpanKind::wait_gradient), 100);
  EXPECT_EQ(spent(SpanKind::wait_lanes), 50);
  EXPECT_EQ(spent(SpanKind::wait_vote), 90);
  EXPECT_EQ(step.other_ns, 20 + 50 + 10);
  EXPECT_EQ(step.forward_backward_ns(), 280 + 300);
  for (std::size_t i = 1; i < step.idle.size(); ++i)
    EXPECT_GE(step.idle[i].begin_ns, step.idle[i - 1].end_ns);
  EXPECT_EQ(
      waits_of(rank_shares({.data = 0, .schedule = {}, .steps = {{.step = 1, .stages = {step}}}})).size(),
      4u);
}

}  // namespace
}  // namespace holdfast::test
