// The rules of layouts over random ones: what they let pass can be carried out, and what they refuse breaks a
// rule of the header.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "parallel/group/layout.h"
#include "parallel/group/mesh.h"
#include "parallel/pipeline/stage_split.h"
#include "tests/support/schedule_check.h"

namespace holdfast::test {
namespace {

class RandomLayouts {
 public:
  explicit RandomLayouts(unsigned seed) : random_(seed) {}
  std::int64_t one_of(std::initializer_list<std::int64_t> values) {
    return values.begin()[random_() % values.size()];
  }
  LayoutFacts facts() {
    return {.layers = one_of({1, 2, 3, 4, 6, 8}),
            .heads = one_of({2, 4, 6, 8}),
            .kv_heads = one_of({2, 4}),
            .feed_forward = one_of({64, 192}),
            .vocabulary = one_of({256, 320}),
            .sequence_length = one_of({16, 64}),
            .lanes = one_of({1, 2, 3, 4, 8, 16}),
            .tensor_lanes = one_of({1, 1, 2, 2, 3, 4, 8})};
  }
  Layout layout() {
    Layout layout{.ranks = one_of({1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24}),
                  .data = one_of({0, 0, 0, 0, 1, 2, 3, -1}),
                  .pipeline = one_of({0, 1, 1, 2, 2, 3, 4, 6, 10}),
                  .tensor = one_of({0, 1, 1, 1, 2, 2, 3, 4}),
                  .spares = one_of({0, 0, 0, 0, 1, 2, -1}),
                  .schedule = static_cast<ScheduleKind>(one_of({0, 1, 2, 3})),
                  .chunks = one_of({0, 1, 1, 1, 2, 3})};
    return layout;
  }

 private:
  std::mt19937 random_;
};

bool is_power_of_two(std::int64_t value) {
  return value > 0 && std::has_single_bit(static_cast<std::uint64_t>(value));
}

// The list of the header.
bool can_run(const Layout& layout, const LayoutFacts& facts) {
  if (layout.pipeline < 1 || layout.tensor < 1 || layout.chunks < 1 || layout.data < 0 || layout.spares < 0)
    return false;
  const std::int64_t slices = facts.tensor_lanes, copy = layout.pipeline * layout.tensor;
  if (!is_power_of_two(slices) || !is_power_of_two(layout.tensor) || slices % layout.tensor != 0)
    return false;
  for (const std::int64_t split :
       {facts.heads, facts.kv_heads, facts.feed_forward, facts.vocabulary, facts.sequence_length})
    if (split % slices != 0) return false;
  if (layout.chunks > 1 && (layout.schedule != ScheduleKind::interleaved || layout.pipeline == 1))
    return false;
  if (layout.pipeline * layout.chunks > facts.layers + 2) return false;
  const std::int64_t computing = layout.ranks - layout.spares;
  if (computing < 1 || computing % copy != 0) return false;
  return (layout.data == 0 || layout.data == computing / copy) && computing / copy <= facts.lanes;
}

// Checks that every rank has something to compute, and that the pipeline's schedule ends.
void expect_carried_out(const Layout& layout, const LayoutFacts& facts) {
  const MeshShape shape = mesh_shape(layout);
  ASSERT_EQ(shape.ranks(), layout.ranks);
  ASSERT_EQ(shape.spares, layout.spares);
  const LaneSchedule lanes(static_cast<int>(facts.lanes), shape.data);
  for (int rank = 0; rank < shape.data; ++rank)
    ASSERT_GE(lanes.lane_of(0, rank), 0) << "a rank without a lane";
  const auto chunks = static_cast<int>(layout.chunks);
  const StageSplit split =
      split_layers(static_cast<int>(facts.layers), shape.pipeline, chunks, {.head = 1.5});
  for (int stage = 0; stage < shape.pipeline; ++stage) {
    for (int chunk = 0; chunk < chunks; ++chunk)
      ASSERT_TRUE(split.of(stage, chunk).count > 0 || split.has_embedding(stage, chunk) ||
                  split.has_head(stage, chunk))
          << "a part with nothing";
  }
  const ScheduleShape schedule = {.kind = layout.schedule,
                                  .stages = shape.pipeline,
                                  .chunks = chunks,
                                  .microbatches_per_lane = 2,
                                  .waves = chunks > 1 ? 1 : lanes.waves(),
                                  .lanes = chunks > 1 ? 1 : lanes.waves()};
  ASSERT_TRUE(schedule_problems(make_schedule(schedule)).empty());
}

TEST(LayoutProperty, WhatPassesCanBeCarriedOutAndNothingElseIsRefused) {
  constexpr int layouts = 100'000;
  RandomLayouts random(20261124);
  int passed = 0;
  for (int i = 0; i < layouts; ++i) {
    const Layout layout = random.layout();
    const LayoutFacts facts = random.facts();
    const std::vector<LayoutProblem> problems = layout_problems(layout, facts);
    ASSERT_EQ(problems.empty(), can_run(layout, facts))
        << fmt::format("{} ranks, {} x {} x {} + {}, {} chunks, {} slices", layout.ranks, layout.data,
                       layout.pipeline, layout.tensor, layout.spares, layout.chunks, facts.tensor_lanes)
        << (problems.empty() ? "" : ": " + problems.front().sentence);
    if (!problems.empty()) continue;
    ++passed;
    expect_carried_out(layout, facts);
    if (testing::Test::HasFatalFailure()) FAIL() << "layout " << i;
  }
  EXPECT_GT(passed, layouts / 100);
}

}  // namespace
}  // namespace holdfast::test
