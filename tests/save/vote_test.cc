// The vote of a step: what one rank asks for is what all of them do.
#include <gtest/gtest.h>

#include "tests/support/worker_rig.h"

namespace holdfast::test {
namespace {

Config three_ranks() {
  Config config;
  config.model.layers = 1;
  config.model.heads = 2;
  config.model.width = 32;
  config.training.steps = 20;
  config.training.sequence_length = 16;
  config.training.microbatch_size = 1;
  config.parallel.lanes = 3;
  config.checkpoint.every_steps = 0;
  config.checkpoint.ram_every_steps = 0;
  return config;
}

TEST(Vote, WhatOneRankAsksForHoldsForAll) {
  test::WorkerRig rig(three_ranks(), 3);
  rig.run([](Worker& worker) -> Result<void> {
    for (int asks = 0; asks < 3; ++asks) {
      const bool mine = worker.rank().communicator.rank() == asks;
      HF_TRY(const StepOutcome stop, run_step(worker, {.stop = mine, .trouble = {}}));
      EXPECT_TRUE(stop.stop) << "rank " << asks << " asks";
      EXPECT_FALSE(stop.grow);
      HF_TRY(const StepOutcome grow, run_step(worker, {.grow = mine, .trouble = {}}));
      EXPECT_TRUE(grow.grow) << "rank " << asks << " asks";
      EXPECT_FALSE(grow.stop);
      HF_TRY(const StepOutcome save, run_step(worker, {.trouble = {}, .due = {.asked_for = mine}}));
      EXPECT_TRUE(save.due.asked_for) << "rank " << asks << " asks";
    }
    HF_TRY(const StepOutcome none, run_step(worker, {}));
    EXPECT_FALSE(none.stop || none.grow);
    EXPECT_FALSE(none.due.wants_disk());
    return {};
  });
}

}  // namespace
}  // namespace holdfast::test
