// Tests what a manifest carries of the state of a run besides what others test: batches that were left out, and how
// far the state was audited.
#include "runtime/save/run_state.h"

#include <gmock/gmock.h>

#include "tests/checkpoint/saved_state.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(RunState, CarriesJumpsAndTheAuditedStep) {
  const DataJump first{.at_step = 30, .data_cursor = 700},
      second{.at_step = 90, .data_cursor = 2'000, .times = 3};
  Manifest manifest;
  put_state({.run_id = "run", .step = 40, .data_cursor = 900, .jumps = {first, second}, .audited_step = 20},
            manifest);
  const Result<RunState> taken = take_state(manifest, "here");
  HF_ASSERT_OK(taken);
  EXPECT_THAT(taken->jumps, ElementsAre(first, second));
  EXPECT_EQ(taken->audited_step, 20U);
  EXPECT_EQ(taken->data_cursor, 900U);

  Manifest plain;
  put_state({.run_id = "run", .step = 40}, plain);
  EXPECT_FALSE(plain.values.contains(jumps_key));
  EXPECT_FALSE(plain.values.contains(left_out_key));
  EXPECT_FALSE(plain.values.contains(audited_step_key));
  HF_ASSERT_OK(take_state(plain, "here"));
}

TEST(RunState, AJumpIsTakenAtItsStepAlone) {
  RunState state{
      .run_id = "run", .step = 30, .data_cursor = 480, .jumps = {{.at_step = 30, .data_cursor = 700}}};
  EXPECT_TRUE(take_jump(state));
  EXPECT_EQ(state.data_cursor, 700U);
  state.step = 31;
  state.data_cursor = 716;
  EXPECT_FALSE(take_jump(state));
  EXPECT_EQ(state.data_cursor, 716U);
}

TEST(RunState, KnowsWhatJumpsHaveLeftOut) {
  RunState state{.run_id = "run", .step = 30, .data_cursor = 480};
  EXPECT_EQ(used_samples(state), 480U);
  state.jumps = {{.at_step = 30, .data_cursor = 700}};
  take_jump(state);
  take_jump(state);  // saved after it was taken, and resumed
  EXPECT_THAT(state.left_out, ElementsAre(PositionRange{480, 700}));
  EXPECT_EQ(used_samples(state), 480U);
  state.jumps = {{.at_step = 30, .data_cursor = 800, .times = 2}};  // the batches after it were not better
  take_jump(state);
  EXPECT_THAT(state.left_out, ElementsAre(PositionRange{480, 800}));
  state.step = 31;
  state.data_cursor = 816;
  state.jumps.push_back({.at_step = 31, .data_cursor = 900});
  take_jump(state);
  EXPECT_THAT(state.left_out, ElementsAre(PositionRange{480, 800}, PositionRange{816, 900}));
  EXPECT_EQ(used_samples(state), 496U);

  Manifest manifest;
  put_state(state, manifest);
  const Result<RunState> taken = take_state(manifest, "here");
  HF_ASSERT_OK(taken);
  EXPECT_EQ(taken->left_out, state.left_out);
  for (const char* bad :
       {"480", "480:480", "480:800:1", "480:800,800:816", "816:901", "816:900,480:800", "x:1"}) {
    manifest.values[left_out_key] = bad;
    const Result<RunState> damaged = take_state(manifest, "here");
    ASSERT_FALSE(damaged.ok()) << bad;
    EXPECT_THAT(damaged.error().message, HasSubstr("here: the manifest has no usable \"data_left_out\""));
  }
}

// A state that is older than the step that the run goes back to has the rate of before up to that step.
TEST(RunState, CountsTheRollbacksBeforeAStep) {
  RunState state;
  state.jumps = {{.at_step = 20, .data_cursor = 700}, {.at_step = 30, .data_cursor = 900, .times = 2}};
  EXPECT_EQ(rollbacks_before(state, 20), 0U);
  EXPECT_EQ(rollbacks_before(state, 21), 1U);
  EXPECT_EQ(rollbacks_before(state, 30), 1U);
  EXPECT_EQ(rollbacks_before(state, 31), 3U);
}

TEST(RunState, DamageIsASentence) {
  Manifest manifest;
  put_state({.run_id = "run", .step = 40}, manifest);
  for (const char* bad : {"30", "30:1", "30:1:1:1", "x:1:1", "30:1:1,20:1:1", "30:1:1,30:2:1", ":::", ","}) {
    Manifest damaged = manifest;
    damaged.values[jumps_key] = bad;
    const Result<RunState> taken = take_state(damaged, "here");
    ASSERT_FALSE(taken.ok()) << bad;
    EXPECT_THAT(taken.error().message, HasSubstr("here: the manifest has no usable \"data_jumps\""));
  }
  manifest.values[audited_step_key] = "-1";
  EXPECT_FALSE(take_state(manifest, "here").ok());
}

}  // namespace
}  // namespace holdfast::test
