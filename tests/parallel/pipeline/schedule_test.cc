#include "parallel/pipeline/schedule.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::ElementsAre;

// "F0 F1 B0 B1": the work (I and W: gradients of inputs and of weights), the microbatch, and the chunk as a
// letter when there are several; "!" behind what completes a lane.
std::string text_of(const ScheduleShape& shape, int stage) {
  std::string text;
  for (const Action& action : actions_of_stage(shape, stage)) {
    text += fmt::format("{}{}{}{}{}", text.empty() ? "" : " ", "FBIW"[static_cast<int>(action.work)],
                        action.microbatch,
                        shape.chunks > 1 ? std::string(1, static_cast<char>('a' + action.chunk)) : "",
                        action.completes_lane ? "!" : "");
  }
  return text;
}

TEST(Schedule, ActionsOfEveryStage) {
  struct Case {
    ScheduleShape shape;
    std::vector<const char*> stages;
  };
  constexpr auto f1b = ScheduleKind::one_forward_one_backward;
  const std::vector<Case> cases = {
      {{.kind = f1b, .stages = 1, .microbatches_per_lane = 2}, {"F0 B0 F1 B1!"}},
      {{.kind = ScheduleKind::gpipe, .stages = 2, .microbatches_per_lane = 3},
       {"F0 F1 F2 B0 B1 B2!", "F0 F1 F2 B0 B1 B2!"}},
      {{.kind = f1b, .stages = 3, .microbatches_per_lane = 4},
       {"F0 F1 F2 B0 F3 B1 B2 B3!", "F0 F1 B0 F2 B1 F3 B2 B3!", "F0 B0 F1 B1 F2 B2 F3 B3!"}},
      {{.kind = f1b, .stages = 3, .microbatches_per_lane = 1}, {"F0 B0!", "F0 B0!", "F0 B0!"}},
      {{.kind = ScheduleKind::zero_bubble, .stages = 3, .microbatches_per_lane = 4},
       {"F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3!", "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3!",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3!"}},
      {{.kind = ScheduleKind::interleaved, .stages = 2, .chunks = 2, .microbatches_per_lane = 4},
       {"F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b! B2a B3a!",
        "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b! B2a B3a!"}},
      // One group of three.
      {{.kind = ScheduleKind::interleaved, .stages = 2, .chunks = 2, .microbatches_per_lane = 3},
       {"F0a F1a F2a F0b F1b F2b B0b B1b B2b! B0a B1a B2a!",
        "F0a F1a F2a F0b B0b F1b B1b F2b B2b! B0a B1a B2a!"}},
      // Lanes follow each other without a pause.
      {{.kind = f1b, .stages = 2, .microbatches_per_lane = 2, .waves = 2, .lanes = 2},
       {"F0 F1 B0 F2 B1! F3 B2 B3!", "F0 B0 F1 B1! F2 B2 F3 B3!"}},
      {{.kind = f1b, .stages = 2, .microbatches_per_lane = 2, .waves = 2, .lanes = 1},
       {"F0 F1 B0 B1!", "F0 B0 F1 B1!"}},
      {{.kind = ScheduleKind::gpipe, .stages = 1, .waves = 1, .lanes = 0}, {""}},
  };
  for (const Case& c : cases) {
    for (int stage = 0; stage < c.shape.stages; ++stage) {
      EXPECT_EQ(text_of(c.shape, stage), c.stages[static_cast<std::size_t>(stage)])
          << name_of(c.shape.kind) << ", stage " << stage;
    }
  }
}

TEST(Schedule, MessagesFollowTheParts) {
  const ScheduleShape shape = {
      .kind = ScheduleKind::interleaved, .stages = 3, .chunks = 2, .microbatches_per_lane = 3};
  struct Case {
    int stage, chunk;
    Work work;
    int source, target;
  };
  const std::vector<Case> cases = {
      {0, 0, Work::forward, no_stage, 1},  {1, 0, Work::forward, 0, 2},  {2, 0, Work::forward, 1, 0},
      {0, 1, Work::forward, 2, 1},         {1, 1, Work::forward, 0, 2},  {2, 1, Work::forward, 1, no_stage},
      {2, 1, Work::backward, no_stage, 1}, {1, 1, Work::backward, 2, 0}, {0, 1, Work::backward, 1, 2},
      {2, 0, Work::backward, 0, 1},        {1, 0, Work::backward, 2, 0}, {0, 0, Work::backward, 1, no_stage},
  };
  for (const Case& c : cases) {
    int found = 0;
    for (const Action& action : actions_of_stage(shape, c.stage)) {
      if (action.chunk != c.chunk || action.work != c.work) continue;
      ++found;
      EXPECT_EQ(action.source, c.source) << "stage " << c.stage << " chunk " << c.chunk;
      EXPECT_EQ(action.target, c.target) << "stage " << c.stage << " chunk " << c.chunk;
    }
    EXPECT_EQ(found, 3);
  }
  const std::vector<Action> alone =
      actions_of_stage({.kind = ScheduleKind::interleaved, .stages = 1, .chunks = 2}, 0);
  EXPECT_THAT(alone,
              ElementsAre(Action{.work = Work::forward, .target = 0},
                          Action{.work = Work::forward, .chunk = 1, .source = 0},
                          Action{.work = Work::backward, .chunk = 1, .target = 0, .completes_lane = true},
                          Action{.work = Work::backward, .source = 0, .completes_lane = true}));
}

TEST(Schedule, WeightGradientsApartSendNothing) {
  for (const Action& action : actions_of_stage({.kind = ScheduleKind::zero_bubble, .stages = 3}, 1)) {
    if (action.work != Work::backward_weight) continue;
    EXPECT_EQ(action.source, no_stage);
    EXPECT_EQ(action.target, no_stage);
  }
}

TEST(Schedule, BuffersOfAStage) {
  struct Case {
    ScheduleShape shape;
    std::vector<std::vector<int>> buffers;  // [stage][chunk]
  };
  const std::vector<Case> cases = {
      {{.kind = ScheduleKind::gpipe, .stages = 2, .microbatches_per_lane = 8}, {{8}, {8}}},
      {{.kind = ScheduleKind::one_forward_one_backward, .stages = 4, .microbatches_per_lane = 8},
       {{4}, {3}, {2}, {1}}},
      {{.kind = ScheduleKind::zero_bubble, .stages = 4, .microbatches_per_lane = 8}, {{4}, {4}, {4}, {4}}},
      {{.kind = ScheduleKind::interleaved, .stages = 2, .chunks = 2, .microbatches_per_lane = 8},
       {{4, 2}, {3, 1}}},
  };
  for (const Case& c : cases) {
    for (int stage = 0; stage < c.shape.stages; ++stage) {
      EXPECT_EQ(activation_buffers(c.shape, actions_of_stage(c.shape, stage)),
                c.buffers[static_cast<std::size_t>(stage)])
          << name_of(c.shape.kind) << ", stage " << stage;
    }
  }
}

TEST(Schedule, NamesAreThoseOfTheConfig) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zero_bubble"}) {
    ASSERT_TRUE(schedule_kind_of(name).has_value()) << name;
    EXPECT_STREQ(name_of(*schedule_kind_of(name)), name);
  }
  EXPECT_FALSE(schedule_kind_of("1F1B").has_value());
}

// Pipelines with and without a lane in the last wave complete the lanes of their chunks in the same order:
// buckets of gradients are exchanged in it.
TEST(Schedule, LanesAreCompletedInTheSameOrderByAllPipelines) {
  const auto completed = [](const ScheduleShape& shape, int stage, int lanes) {
    std::vector<std::pair<int, int>> order;  // lane, chunk
    for (const Action& action : actions_of_stage(shape, stage)) {
      const int lane = action.microbatch / shape.microbatches_per_lane;
      if (action.completes_lane && lane < lanes) order.emplace_back(lane, action.chunk);
    }
    return order;
  };
  for (int stages = 1; stages <= 4; ++stages) {
    for (int per_lane = 1; per_lane <= 5; ++per_lane) {
      for (int waves = 1; waves <= 4; ++waves) {
        ScheduleShape shape = {.kind = ScheduleKind::interleaved,
                               .stages = stages,
                               .chunks = 3,
                               .microbatches_per_lane = per_lane,
                               .waves = waves,
                               .lanes = waves};
        for (int stage = 0; stage < stages; ++stage) {
          shape.lanes = waves;
          const auto whole = completed(shape, stage, waves - 1);
          shape.lanes = waves - 1;
          ASSERT_EQ(completed(shape, stage, waves), whole);
          ASSERT_EQ(std::ssize(whole), 3 * (waves - 1));
        }
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::test
