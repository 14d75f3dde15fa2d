#include "tests/support/schedule_check.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "runtime/core/check.h"

namespace holdfast::test {
namespace {

using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto f1b = ScheduleKind::one_forward_one_backward;

constexpr ScheduleKind all_kinds[] = {ScheduleKind::gpipe, f1b, ScheduleKind::interleaved,
                                      ScheduleKind::zero_bubble};

void expect_sound(const ScheduleShape& shape) {
  const Schedule schedule = make_schedule(shape);
  ASSERT_THAT(schedule_problems(schedule), IsEmpty())
      << name_of(shape.kind) << ": " << shape.stages << " stages, " << shape.chunks << " chunks, "
      << shape.lanes << " of " << shape.waves << " lanes of " << shape.microbatches_per_lane;
}

// Every shape of up to 16 stages x 4 chunks x 64 microbatches, of every kind.
TEST(ScheduleCheck, EverySchedule) {
  for (const ScheduleKind kind : all_kinds) {
    for (int stages = 1; stages <= 16; ++stages) {
      for (int chunks = 1; chunks <= (kind == ScheduleKind::interleaved ? 4 : 1); ++chunks) {
        for (int microbatches = 1; microbatches <= 64; ++microbatches) {
          expect_sound(
              {.kind = kind, .stages = stages, .chunks = chunks, .microbatches_per_lane = microbatches});
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// The same through several lanes, also where this pipeline has none in the last wave.
TEST(ScheduleCheck, EveryScheduleOfSeveralLanes) {
  for (const ScheduleKind kind : all_kinds) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int chunks = 1; chunks <= (kind == ScheduleKind::interleaved ? 3 : 1); ++chunks) {
        for (int per_lane = 1; per_lane <= 9; ++per_lane) {
          for (int waves = 1; waves <= 5; ++waves) {
            for (const int lanes : {waves, waves - 1}) {
              expect_sound({.kind = kind,
                            .stages = stages,
                            .chunks = chunks,
                            .microbatches_per_lane = per_lane,
                            .waves = waves,
                            .lanes = lanes});
              if (testing::Test::HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

// Where a stage first meets an action of this work, microbatch and chunk.
std::size_t index_of(const Schedule& schedule, int stage, Work work, int microbatch, int chunk = 0) {
  const std::vector<Action>& actions = schedule.actions[static_cast<std::size_t>(stage)];
  const auto found = std::ranges::find_if(actions, [&](const Action& action) {
    return action.work == work && action.microbatch == microbatch && action.chunk == chunk;
  });
  HF_CHECK(found != actions.end());
  return static_cast<std::size_t>(found - actions.begin());
}

struct Planted {
  const char* what;
  ScheduleShape shape;
  std::function<void(Schedule&)> plant;
  const char* sentence;
};

const ScheduleShape plain = {.kind = f1b, .stages = 3, .microbatches_per_lane = 4};
const ScheduleShape split = {.kind = ScheduleKind::zero_bubble, .stages = 3, .microbatches_per_lane = 4};
const ScheduleShape folded = {
    .kind = ScheduleKind::interleaved, .stages = 2, .chunks = 2, .microbatches_per_lane = 4};

Action& at(Schedule& schedule, int stage, Work work, int microbatch, int chunk = 0) {
  return schedule
      .actions[static_cast<std::size_t>(stage)][index_of(schedule, stage, work, microbatch, chunk)];
}

void expect_found(const std::vector<Planted>& cases) {
  for (const Planted& c : cases) {
    Schedule schedule = make_schedule(c.shape);
    c.plant(schedule);
    const std::vector<std::string> problems = schedule_problems(schedule);
    EXPECT_THAT(problems, Contains(HasSubstr(c.sentence))) << c.what;
  }
}

TEST(ScheduleCheck, FindsWhatIsMissingOrTooMuch) {
  expect_found({
      {"a stage", plain, [](Schedule& s) { s.actions.pop_back(); },
       "there are actions of 2 stages, expected 3"},
      {"a forward", plain, [](Schedule& s) { s.actions[1].erase(s.actions[1].begin()); },
       "stage 1, microbatch 0, chunk 0: 0 forwards, 1 backwards, 0 of inputs and 0 of weights"},
      {"a backward", plain, [](Schedule& s) { s.actions[2].pop_back(); },
       "microbatch 3, chunk 0: 1 forwards, 0 backwards"},
      {"a weight gradient", split, [](Schedule& s) { s.actions[2].pop_back(); },
       "microbatch 3, chunk 0: 1 forwards, 0 backwards, 1 of inputs and 0 of weights"},
      {"a backward twice", plain, [](Schedule& s) { s.actions[2].push_back(s.actions[2].back()); },
       "microbatch 3, chunk 0: 1 forwards, 2 backwards"},
      {"both kinds of backward", split,
       [](Schedule& s) {
         s.actions[1].push_back({.work = Work::backward, .microbatch = 3, .source = 2, .target = 0});
       },
       "1 forwards, 1 backwards, 1 of inputs and 1 of weights"},
      {"a microbatch beyond", plain, [](Schedule& s) { s.actions[0].push_back({.microbatch = 4}); },
       "the shape has 1 chunks and 4 microbatches"},
      {"a chunk beyond", plain, [](Schedule& s) { s.actions[0].push_back({.chunk = 1}); },
       "the shape has 1 chunks and 4 microbatches"},
  });
}

TEST(ScheduleCheck, FindsWrongOrder) {
  expect_found({
      {"weight gradients", split,
       [](Schedule& s) { std::swap(at(s, 1, Work::backward_weight, 1), at(s, 1, Work::backward_weight, 2)); },
       "(backward of weights of microbatch 1, chunk 0) comes after that of microbatch 2: weight gradients of "
       "a chunk"},
      {"input gradients", split,
       [](Schedule& s) { std::swap(at(s, 2, Work::backward_input, 1), at(s, 2, Work::backward_input, 2)); },
       "(backward of inputs of microbatch 1, chunk 0) comes after that of microbatch 2: input gradients of a "
       "chunk"},
      {"whole backwards", plain,
       [](Schedule& s) { std::swap(at(s, 0, Work::backward, 1), at(s, 0, Work::backward, 2)); },
       "(backward of microbatch 1, chunk 0) comes after that of microbatch 2"},
      {"forwards", plain, [](Schedule& s) { std::swap(s.actions[0][0], s.actions[0][1]); },
       "forwards of a chunk must be in the order of microbatches"},
      {"a backward first", plain, [](Schedule& s) { std::swap(s.actions[2][0], s.actions[2][1]); },
       "stage 2, action 0 (backward of microbatch 0, chunk 0) comes before the forward"},
      {"weights before inputs", split,
       [](Schedule& s) { std::swap(at(s, 0, Work::backward_input, 0), at(s, 0, Work::backward_weight, 0)); },
       "(backward of weights of microbatch 0, chunk 0) comes before the backward of inputs"},
  });
}

TEST(ScheduleCheck, FindsWrongLinksAndMarks) {
  expect_found({
      {"no receiver", plain, [](Schedule& s) { s.actions[0][0].target = no_stage; },
       "stage 0, action 0 (forward of microbatch 0, chunk 0) goes from stage -1 to stage -1, expected -1 to "
       "1"},
      {"another sender", plain, [](Schedule& s) { at(s, 1, Work::backward, 2).source = 0; },
       "goes from stage 0 to stage 0, expected 2 to 0"},
      {"weights that travel", split, [](Schedule& s) { at(s, 1, Work::backward_weight, 2).target = 0; },
       "goes from stage -1 to stage 0, expected -1 to -1"},
      {"completes too early", plain, [](Schedule& s) { at(s, 1, Work::backward, 2).completes_lane = true; },
       "(backward of microbatch 2, chunk 0) claims to complete the gradients of a lane"},
      {"completes never", plain, [](Schedule& s) { at(s, 1, Work::backward, 3).completes_lane = false; },
       "(backward of microbatch 3, chunk 0) does not complete the gradients of a lane"},
      {"completes with the inputs", split,
       [](Schedule& s) { at(s, 1, Work::backward_input, 3).completes_lane = true; },
       "(backward of inputs of microbatch 3, chunk 0) claims to complete"},
  });
}

TEST(ScheduleCheck, FindsDeadlock) {
  expect_found({
      // The first stage wants the gradient of a microbatch before it sends the next, the last one all
      // activations first.
      {"two stages that wait for each other",
       {.kind = f1b, .stages = 2, .microbatches_per_lane = 2},
       [](Schedule& s) {
         std::swap(s.actions[0][1], s.actions[0][2]);  // F0 B0 F1 B1
         s.shape.kind = ScheduleKind::gpipe;
         s.actions[1] = actions_of_stage(s.shape, 1);
       },
       "deadlock: stage 0, action 1 (backward of microbatch 0, chunk 0) waits for stage 1; stage 1, action 1 "
       "(forward of microbatch 1, chunk 0) waits for stage 0"},
      {"messages in another order than sent", folded,
       [](Schedule& s) {
         Action& late = at(s, 1, Work::forward, 1, 0);
         Action& early = at(s, 1, Work::forward, 0, 1);
         HF_CHECK(index_of(s, 1, Work::forward, 1, 0) + 1 == index_of(s, 1, Work::forward, 0, 1));
         std::swap(late, early);
       },
       "stage 1 wants the activations of microbatch 0, part 3, but those of microbatch 1, part 1, come "
       "first"},
      {"a chunk before the one before it",
       {.kind = ScheduleKind::interleaved, .stages = 1, .chunks = 2},
       [](Schedule& s) { std::swap(s.actions[0][0], s.actions[0][1]); },
       "deadlock: stage 0, action 0 (forward of microbatch 0, chunk 1) waits for stage 0"},
  });
}

TEST(ScheduleCheck, FindsTooManyActivations) {
  for (const ScheduleKind kind : {f1b, ScheduleKind::zero_bubble}) {
    Schedule schedule = make_schedule({.kind = ScheduleKind::gpipe, .stages = 3, .microbatches_per_lane = 4});
    schedule.shape.kind = kind;
    EXPECT_THAT(schedule_problems(schedule),
                Contains(HasSubstr("stage 1 keeps the activations of 4 microbatches at once")))
        << name_of(kind);
  }
  // Every weight gradient at the end.
  Schedule late = make_schedule(split);
  std::ranges::stable_partition(late.actions[2],
                                [](const Action& a) { return a.work != Work::backward_weight; });
  EXPECT_THAT(schedule_problems(late), Contains("stage 2 keeps the activations of 4 microbatches at once, of "
                                                "which zero_bubble promises at most 3"));
}

TEST(ScheduleCheck, FindsTooManyGradientsKept) {
  Schedule late = make_schedule(split);
  // On the first stage, where memory has room for it: the weight gradient of microbatch 0 one backward late.
  std::vector<Action>& actions = late.actions[0];
  const auto weight =
      actions.begin() + static_cast<std::ptrdiff_t>(index_of(late, 0, Work::backward_weight, 0));
  const auto next = actions.begin() + static_cast<std::ptrdiff_t>(index_of(late, 0, Work::backward_input, 1));
  std::rotate(weight, weight + 1, next + 1);
  EXPECT_THAT(schedule_problems(late), Contains("stage 0 keeps the gradients of 2 microbatches at once, of "
                                                "which zero_bubble promises at most 1"));
}

// The bounds of schedule.h for m microbatches on stage s of p, with v chunks.
int promised(ScheduleKind kind, int p, int v, int m, int s) {
  if (kind == ScheduleKind::gpipe) return m;
  if (kind == ScheduleKind::zero_bubble) return std::min(m, p);
  if (v == 1) return std::min(m, p - s);
  const int groups = std::max(1, m / p), first = (m + groups - 1) / groups;
  return std::min(m * v, 2 * (p - s - 1) + (v - 1) * first + 1);
}

// The promise is kept to the number, and buffers by chunk are not much more.
TEST(ScheduleCheck, TheBoundIsReachedAndNoMore) {
  for (const ScheduleKind kind : all_kinds) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (int chunks = 1; chunks <= (kind == ScheduleKind::interleaved ? 4 : 1); ++chunks) {
        for (int microbatches = 1; microbatches <= 16; ++microbatches) {
          const ScheduleShape shape = {
              .kind = kind, .stages = stages, .chunks = chunks, .microbatches_per_lane = microbatches};
          for (int stage = 0; stage < stages; ++stage) {
            const std::vector<Action> actions = actions_of_stage(shape, stage);
            int kept = 0, most = 0;
            for (const Action& action : actions) {
              if (action.work == Work::forward) most = std::max(most, ++kept);
              if (action.work == Work::backward || action.work == Work::backward_weight) --kept;
            }
            const std::vector<int> buffers = activation_buffers(shape, actions);
            EXPECT_THAT(weight_gradient_buffers(shape, actions),
                        Each(kind == ScheduleKind::zero_bubble ? std::min(microbatches, stage + 1) : 0));
            EXPECT_EQ(activations_in_flight_max(shape, stage),
                      promised(kind, stages, chunks, microbatches, stage));
            EXPECT_EQ(most, activations_in_flight_max(shape, stage));
            EXPECT_GE(std::accumulate(buffers.begin(), buffers.end(), 0), most);
            EXPECT_LE(*std::ranges::max_element(buffers), most);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::test
