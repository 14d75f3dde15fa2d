// What hides which messages: a step's time from made-up parts and bytes.
#include "runtime/plan/step_time.h"

#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

constexpr double rate = 1e6;  // bytes per second of a link between hosts

Config config_of(int lanes, int microbatches, int stages) {
  Config config;
  config.model.width = 2;
  config.training.sequence_length = 1;
  config.training.microbatch_size = 1;
  config.training.microbatches_per_lane = microbatches;
  config.training.precision = "fp32";
  config.parallel.lanes = lanes;
  config.parallel.pipeline = stages;
  config.parallel.tensor = config.parallel.pipeline_chunks = 1;
  config.parallel.pipeline_schedule = "1f1b";
  config.checkpoint.ram_every_steps = 0;
  return config;
}

// Two replicas; every stage takes a second forward and two backward.
class StepTimeTest : public testing::Test {
 protected:
  StepEstimate estimate(const Config& config, double seconds = 1.0) {
    const auto stages = static_cast<int>(config.parallel.pipeline);
    const Mesh mesh({.data = 2, .pipeline = stages});
    const LaneSchedule lanes(static_cast<int>(config.parallel.lanes), 2);
    std::vector<StageCosts> costs;
    for (int stage = 0; stage < stages; ++stage) {
      costs.push_back(costs_);
      costs.back().rank = stage;
      costs.back().parts = {{.forward = seconds, .backward = 2.0 * seconds}};
    }
    return estimate_step({.config = config, .mesh = mesh, .lanes = lanes, .stages = costs}, machine_);
  }
  static Traffic bytes(double count) { return {.bytes_received = static_cast<std::uint64_t>(count)}; }

  StageCosts costs_;
  PlannedMachine machine_{.ranks_per_host = 1,
                          .link_bytes_per_second = rate,
                          .host_link_bytes_per_second = 10.0 * rate,
                          .overlaps_messages = true};
};

TEST_F(StepTimeTest, GradientsHideBehindTheBackwardButForTheLastBucket) {
  costs_.traffic.gradients = costs_.traffic.gradients_between_hosts = bytes(1.0 * rate);
  costs_.last_reduction_share = 0.25;
  const StepTime time = estimate(config_of(2, 1, 1)).time;
  EXPECT_DOUBLE_EQ(time.compute, 3.0);
  EXPECT_DOUBLE_EQ(time.communication, 0.25);
  EXPECT_DOUBLE_EQ(time.hidden.gradients, 0.75);
  EXPECT_DOUBLE_EQ(time.seconds(), 3.25);
}

TEST_F(StepTimeTest, GradientsThatTakeLongerThanTheBackwardAreExposed) {
  costs_.traffic.gradients = costs_.traffic.gradients_between_hosts = bytes(5.0 * rate);
  EXPECT_DOUBLE_EQ(estimate(config_of(2, 1, 1)).time.communication, 5.0 - 2.0);
  // Two waves of 2.5 s each: the first hides behind the next forward, too.
  const StepTime waves = estimate(config_of(4, 1, 1)).time;
  EXPECT_DOUBLE_EQ(waves.communication, 0.5);
  EXPECT_DOUBLE_EQ(waves.hidden.gradients, 4.5);
}

TEST_F(StepTimeTest, ParametersHideBehindTheNextForward) {
  costs_.traffic.parameters = costs_.traffic.parameters_between_hosts = bytes(0.8 * rate);
  costs_.first_gather_share = 0.5;
  const StepTime time = estimate(config_of(2, 1, 1)).time;
  EXPECT_DOUBLE_EQ(time.communication, 0.4) << "the first forward waits for its own";
  EXPECT_DOUBLE_EQ(time.hidden.parameters, 0.4);
  costs_.traffic.parameters = costs_.traffic.parameters_between_hosts = bytes(3.0 * rate);
  EXPECT_DOUBLE_EQ(estimate(config_of(2, 1, 1)).time.communication, 2.0);
}

TEST_F(StepTimeTest, SlicesAreNeverHidden) {
  costs_.traffic.slices = bytes(30.0 * rate);  // inside the host: 3 s
  const StepTime time = estimate(config_of(2, 1, 1)).time;
  EXPECT_NEAR(time.communication, 3.0, 1e-12);
  EXPECT_NEAR(time.seconds(), 6.0, 1e-12);
}

TEST_F(StepTimeTest, BoundariesHideBehindOtherMicrobatches) {
  const double boundary = 2.0 * sizeof(float);  // of one row of width 2
  *machine_.link_bytes_per_second = boundary / 0.1;
  costs_.traffic.boundaries = bytes(40.0 * boundary);
  const StepEstimate many = estimate(config_of(2, 40, 2));
  EXPECT_DOUBLE_EQ(many.time.compute, 3.0 * 40);
  EXPECT_LT(many.time.communication, 0.1 * 40 * 2);
  EXPECT_GT(many.time.hidden.boundaries, 0.0);
  EXPECT_NEAR(many.time.hidden.boundaries + many.time.communication, 0.1 * 40, 1e-9);
  const StepEstimate one = estimate(config_of(2, 1, 2));
  EXPECT_NEAR(one.time.communication, 0.2, 1e-9) << "there and back, and nothing else to do";
}

TEST_F(StepTimeTest, RanksOfOneHostSendAtItsRate) {
  costs_.traffic.gradients = costs_.traffic.gradients_between_hosts = bytes(50.0 * rate);
  EXPECT_DOUBLE_EQ(estimate(config_of(2, 1, 1)).time.communication, 48.0);
  costs_.traffic.gradients_between_hosts = {};
  machine_.ranks_per_host = 2;
  EXPECT_DOUBLE_EQ(estimate(config_of(2, 1, 1)).time.communication, 3.0);
  machine_.ranks_per_host = 0;
  EXPECT_DOUBLE_EQ(estimate(config_of(2, 1, 1)).time.communication, 3.0);
}

TEST_F(StepTimeTest, ProcessorsThatCopyHideNothing) {
  machine_.overlaps_messages = false;
  costs_.traffic.gradients = costs_.traffic.gradients_between_hosts = bytes(1.0 * rate);
  const StepTime time = estimate(config_of(2, 1, 1)).time;
  EXPECT_DOUBLE_EQ(time.communication, 1.0);
  EXPECT_EQ(time.hidden.sum(), 0.0);
}

TEST_F(StepTimeTest, SnapshotsHideBehindTheStep) {
  costs_.snapshot_bytes = static_cast<std::uint64_t>(20.0 * rate);  // inside the host: 2 s
  Config config = config_of(2, 1, 1);
  config.checkpoint.ram_every_steps = 4;
  EXPECT_DOUBLE_EQ(estimate(config).time.hidden.snapshot, 2.0);
  EXPECT_DOUBLE_EQ(estimate(config).time.communication, 0.0);
  costs_.snapshot_bytes *= 2;
  EXPECT_DOUBLE_EQ(estimate(config).time.hidden.snapshot, 3.0);
  EXPECT_DOUBLE_EQ(estimate(config).time.communication, 1.0 / 4.0);
}

// 4,096 microbatches are not played one by one, and take what they would take: 1f1b has a closed form.
TEST_F(StepTimeTest, LongSchedulesAreNotPlayedToTheEnd) {
  const int stages = 32, microbatches = 4096;
  machine_ = {};
  const StepEstimate estimated = estimate(config_of(2, microbatches, stages), 1e-3);
  EXPECT_NEAR(estimated.time.compute + estimated.time.bubble, 3e-3 * (microbatches + stages - 1), 1e-6);
  EXPECT_NEAR(estimated.bubble_share, (stages - 1.0) / (microbatches + stages - 1.0), 1e-9);
}

}  // namespace
}  // namespace holdfast::test
