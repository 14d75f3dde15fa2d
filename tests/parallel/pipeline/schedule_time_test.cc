#include "parallel/pipeline/schedule_time.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace holdfast::test {
namespace {

constexpr auto one_f_one_b = ScheduleKind::one_forward_one_backward;

ScheduleTime time_of(const ScheduleShape& shape, const PartDurations& part, double transfer = 0.0) {
  const std::vector<PartDurations> parts(static_cast<std::size_t>(shape.parts()), part);
  return schedule_time(make_schedule(shape), parts, transfer);
}

void expect_bubble(const ScheduleShape& shape, const PartDurations& part, double share) {
  const ScheduleTime time = time_of(shape, part);
  for (const double stage : time.bubble_shares) {
    ASSERT_NEAR(stage, share, 1e-9) << name_of(shape.kind) << ": " << shape.stages << " stages, "
                                    << shape.chunks << " chunks, " << shape.microbatches() << " microbatches";
  }
  ASSERT_NEAR(time.bubble_share(), share, 1e-9);
}

// The shares of the papers, for all shapes that schedule_check_test.cc proves.
TEST(ScheduleTime, BubblesAreThoseOfTheFormulas) {
  const PartDurations halves = {.forward = 1.0, .backward_input = 1.25, .backward_weight = 0.75};
  for (int stages = 1; stages <= 16; ++stages) {
    for (int microbatches = 1; microbatches <= 64; ++microbatches) {
      const double p = stages, m = microbatches;
      for (const ScheduleKind kind : {ScheduleKind::gpipe, one_f_one_b}) {
        expect_bubble({.kind = kind, .stages = stages, .microbatches_per_lane = microbatches}, halves,
                      (p - 1) / (m + p - 1));
      }
      if (microbatches < stages) continue;
      for (int chunks = 1; chunks <= 4; ++chunks) {
        expect_bubble({.kind = ScheduleKind::interleaved,
                       .stages = stages,
                       .chunks = chunks,
                       .microbatches_per_lane = microbatches},
                      halves, (p - 1) / (chunks * m + p - 1));
      }
      expect_bubble(
          {.kind = ScheduleKind::zero_bubble, .stages = stages, .microbatches_per_lane = microbatches},
          {1.0, 1.0, 1.0}, (p - 1) / (3 * m + p - 1));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(ScheduleTime, LanesThatFollowEachOtherCostOneBubble) {
  const PartDurations part = {1.0, 1.0, 1.0};
  const ScheduleShape lanes = {
      .kind = one_f_one_b, .stages = 4, .microbatches_per_lane = 2, .waves = 8, .lanes = 8};
  expect_bubble(lanes, part, 3.0 / (16 + 3));
}

// Fewer microbatches than stages leave the turns of the missing ones empty.
TEST(ScheduleTime, FewerMicrobatchesThanStages) {
  const PartDurations part = {1.0, 1.0, 1.0};
  const ScheduleShape folded = {
      .kind = ScheduleKind::interleaved, .stages = 4, .chunks = 2, .microbatches_per_lane = 2};
  EXPECT_DOUBLE_EQ(time_of(folded, part).duration, 3.0 * (2 * 4 + 2 - 1));
  const ScheduleShape split = {.kind = ScheduleKind::zero_bubble, .stages = 4, .microbatches_per_lane = 2};
  EXPECT_DOUBLE_EQ(time_of(split, part).duration, 3.0 * 2 + (4 - 1) + (4 - 2));
}

TEST(ScheduleTime, EveryActionHasItsTime) {
  const ScheduleShape shape = {.kind = one_f_one_b, .stages = 2, .microbatches_per_lane = 2};
  const std::vector<PartDurations> parts = {{1.0, 2.0, 1.0}, {2.0, 2.0, 2.0}};
  const ScheduleTime time = schedule_time(make_schedule(shape), parts, 0.5);
  const std::vector<std::vector<std::pair<double, double>>> expected = {
      {{0.0, 1.0}, {1.0, 2.0}, {8.0, 11.0}, {14.0, 17.0}},  // F0 F1 B0 B1
      {{1.5, 3.5}, {3.5, 7.5}, {7.5, 9.5}, {9.5, 13.5}}};   // F0 B0 F1 B1
  for (std::size_t stage = 0; stage < 2; ++stage) {
    for (std::size_t index = 0; index < 4; ++index) {
      EXPECT_DOUBLE_EQ(time.actions[stage][index].begin, expected[stage][index].first);
      EXPECT_DOUBLE_EQ(time.actions[stage][index].end, expected[stage][index].second);
    }
  }
  EXPECT_DOUBLE_EQ(time.duration, 17.0);
  EXPECT_DOUBLE_EQ(time.bubble_shares[0], 1.0 - 8.0 / 17.0);
  EXPECT_DOUBLE_EQ(time.bubble_shares[1], 1.0 - 12.0 / 17.0);
}

TEST(ScheduleTime, TransfersCostWhereNothingHidesThem) {
  const PartDurations part = {1.0, 1.0, 1.0};
  // There and back through every boundary.
  EXPECT_DOUBLE_EQ(time_of({.kind = ScheduleKind::gpipe, .stages = 4}, part, 0.25).duration,
                   4 * 3.0 + 6 * 0.25);
  // Between chunks of one stage there is none.
  EXPECT_DOUBLE_EQ(
      time_of({.kind = ScheduleKind::interleaved, .stages = 1, .chunks = 4}, part, 0.25).duration, 4 * 3.0);
  // Plenty of microbatches in flight hide those of the middle.
  const ScheduleShape many = {.kind = ScheduleKind::gpipe, .stages = 4, .microbatches_per_lane = 32};
  EXPECT_DOUBLE_EQ(time_of(many, part, 0.25).duration, (32 + 3) * 3.0 + 6 * 0.25);
}

TEST(ScheduleTime, EveryBoundaryHasItsOwnTransfer) {
  const ScheduleShape shape = {.kind = ScheduleKind::gpipe, .stages = 3};
  const std::vector<PartDurations> parts(3, {1.0, 1.0, 1.0});
  const std::vector<double> transfers = {0.25, 2.0, 100.0};  // nothing goes from the last stage to the first
  EXPECT_DOUBLE_EQ(schedule_time(make_schedule(shape), parts, transfers).duration,
                   3 * 3.0 + 2 * (0.25 + 2.0));
}

// An evaluation takes the forwards out of any schedule.
TEST(ScheduleTime, ForwardsAloneFillThePipelineOnce) {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zero_bubble}) {
    const int chunks = kind == ScheduleKind::interleaved ? 2 : 1;
    const ScheduleShape shape = {.kind = kind, .stages = 4, .chunks = chunks, .microbatches_per_lane = 10};
    Schedule schedule = make_schedule(shape);
    for (std::vector<Action>& actions : schedule.actions) {
      std::erase_if(actions, [](const Action& action) { return action.work != Work::forward; });
    }
    const std::vector<PartDurations> parts(static_cast<std::size_t>(shape.parts()), {1.0, 1.0, 1.0});
    EXPECT_DOUBLE_EQ(schedule_time(schedule, parts, 0.0).duration, chunks * 10 + 3) << name_of(kind);
  }
}

// What plan shows of a schedule that has fewer or shorter bubbles.
TEST(ScheduleTime, OneLineOfFacts) {
  const auto line = [](const ScheduleShape& shape) {
    return describe(shape, time_of(shape, {1.0, 1.0, 1.0}));
  };
  EXPECT_EQ(line({.kind = one_f_one_b, .stages = 4, .microbatches_per_lane = 8}),
            "1f1b: 4 stages, 8 microbatches, bubble 27.3 %, activations in flight 4, 3, 2, 1");
  EXPECT_EQ(
      line({.kind = ScheduleKind::interleaved, .stages = 4, .chunks = 2, .microbatches_per_lane = 8}),
      "interleaved: 4 stages of 2 chunks, 8 microbatches, bubble 15.8 %, activations in flight 11, 9, 7, 5");
  EXPECT_EQ(line({.kind = ScheduleKind::zero_bubble, .stages = 4, .microbatches_per_lane = 8}),
            "zero_bubble: 4 stages, 8 microbatches, bubble 11.1 %, activations in flight 4, 4, 4, 4");
  EXPECT_EQ(line({.kind = ScheduleKind::gpipe}),
            "gpipe: 1 stage, 1 microbatch, bubble 0.0 %, activations in flight 1");
}

}  // namespace
}  // namespace holdfast::test
