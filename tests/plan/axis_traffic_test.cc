// Compares what the ranks of real steps count with the planned traffic of each rank, and with the sums over
// all ranks that anybody can work out by hand.
#include <gtest/gtest.h>

#include <array>
#include <string_view>
#include <vector>

#include "runtime/train/ballot.h"
#include "tests/plan/planned_traffic.h"
#include "tests/support/worker_rig.h"

namespace holdfast::test {
namespace {

struct AxisLayout {
  const char* name;
  int data = 1, stages = 1, chunks = 1;
  bool tied = false;
  bool bf16 = false;
  int microbatches_per_lane = 1;
  int tensor = 1;
  const char* schedule = "1f1b";
  const char* recompute = "none";
  int ranks() const { return data * stages * tensor; }
  bool gathers_again() const {
    return schedule == std::string_view("zero_bubble") || recompute != std::string_view("none");
  }
};

// Shapes of whole sixteens, so that nothing is padding.
Config config_of(const AxisLayout& layout) {
  Config config;
  config.model.layers = 4;
  config.model.heads = 2;
  config.model.width = 64;
  config.model.head = layout.tied ? "tied" : "untied";
  config.training.steps = 10;
  config.training.sequence_length = 8;
  config.training.microbatch_size = 2;
  config.training.microbatches_per_lane = layout.microbatches_per_lane;
  config.training.precision = layout.bf16 ? "bf16" : "fp32";
  config.parallel.lanes = 4;
  config.parallel.pipeline = layout.stages;
  config.parallel.tensor = layout.tensor;
  config.parallel.pipeline_chunks = layout.chunks;
  config.parallel.pipeline_schedule = layout.schedule;
  config.training.recompute = layout.recompute;
  return config;
}

// Sent in a step by all ranks together. The data degree divides the lanes.
struct BytesSent {
  std::uint64_t data = 0, pipeline = 0, tensor = 0, control = 0;
};

BytesSent by_hand(const Config& config, const AxisLayout& layout) {
  const ModelSpec spec = make_model_spec(config);
  const std::uint64_t element_bytes = bytes_of(spec.dtype), gradient_bytes = sizeof(float);
  std::uint64_t weights = 0;
  const auto tensor = static_cast<std::uint64_t>(layout.tensor);
  std::uint64_t norms = 0;  // elements of their gradients
  for (const ParameterSpec& parameter : parameter_specs(spec)) {
    const bool whole = parameter.cut == Cut::none;  // and so on all ranks of a tensor group
    weights += parameter.elements() * (whole ? tensor : 1);
    if (whole) norms += parameter.elements();
  }
  const auto embedding = static_cast<std::uint64_t>(spec.padded_vocabulary * spec.width);
  const auto data = static_cast<std::uint64_t>(layout.data),
             stages = static_cast<std::uint64_t>(layout.stages);
  const auto lanes = static_cast<std::uint64_t>(config.parallel.lanes);
  // A tied weight has two gradients, and where its ends are on two stages it is kept on both.
  const std::uint64_t gradients = weights + (layout.tied ? embedding : 0);
  const std::uint64_t copies = weights + (layout.tied && stages > 1 ? embedding : 0);
  BytesSent bytes;
  // A lane keeps the part that its rank owns: of D lanes (D-1)/D leave. An owner tells D - 1 others.
  bytes.data = lanes / data * (data - 1) * gradients * gradient_bytes + (data - 1) * copies * element_bytes;
  // Every microbatch passes every boundary twice.
  const auto boundaries = static_cast<std::uint64_t>(layout.stages * layout.chunks - 1);
  const auto microbatch = static_cast<std::uint64_t>(config.training.microbatch_size *
                                                     config.training.sequence_length * spec.width);
  const auto microbatches = lanes * static_cast<std::uint64_t>(config.training.microbatches_per_lane);
  if (stages > 1) bytes.pipeline = 2 * boundaries * microbatches * microbatch * element_bytes;
  if (stages > 1 && layout.tied) bytes.pipeline += embedding * (gradient_bytes + element_bytes);
  // Four gathers of rows and four sums over slices in every layer; gathers of the embedding's rows, their
  // gradient and the final norm, the sum at the head; what slices know of a row; norms once a lane.
  const auto layers = static_cast<std::uint64_t>(spec.layers);
  const auto rows =
      static_cast<std::uint64_t>(config.training.microbatch_size * config.training.sequence_length);
  bytes.tensor = (tensor - 1) *
                 (microbatches * microbatch *
                      (4 * layers * (element_bytes + gradient_bytes) + 3 * element_bytes + gradient_bytes) +
                  microbatches * rows * tensor * 12 + lanes * norms * tensor * gradient_bytes);
  // Up the tree and down again.
  bytes.control = 2 * (data * stages * tensor - 1) * ballot_words * sizeof(std::int64_t);
  return bytes;
}

using Numbers = std::array<std::uint64_t, 4>;
Numbers numbers(const Traffic& traffic) {
  return {traffic.bytes_sent, traffic.messages_sent, traffic.bytes_received, traffic.messages_received};
}

class AxisTrafficTest : public testing::TestWithParam<AxisLayout> {};

TEST_P(AxisTrafficTest, IsAsPlanned) {
  const AxisLayout& layout = GetParam();
  constexpr std::uint64_t steps = 2;
  WorkerRig rig(config_of(layout), layout.ranks());
  std::vector<AxisTraffic> of_rank(static_cast<std::size_t>(layout.ranks()));  // one slot each
  rig.run([&](Worker& worker) -> Result<void> {
    const int rank = worker.rank().communicator.rank();
    const AxisTraffic before = worker.rank().links.traffic();
    for (std::uint64_t step = 0; step < steps; ++step) HF_TRY_VOID(outcome_of(run_step(worker, {})));
    HF_TRY_VOID(worker.parameter_gather().finish());
    const StepTraffic planned = planned_traffic(rig.config(), layout.ranks(), rank);
    const auto expect = [&](Axis axis, const Traffic& of_step) {
      Traffic& counted = of_rank[static_cast<std::size_t>(rank)].of(axis);
      counted = worker.rank().links.traffic().of(axis) - before.of(axis);
      EXPECT_EQ(numbers(counted), numbers(of_step + of_step)) << "axis " << static_cast<int>(axis);
    };
    expect(Axis::data, planned.data());
    expect(Axis::pipeline, planned.pipeline());
    expect(Axis::tensor, planned.slices);
    expect(Axis::control, planned.votes);
    return {};
  });

  if (layout.gathers_again()) return;  // more than anybody wants to work out by hand
  const BytesSent hand = by_hand(rig.config(), layout);
  const auto expect_sum = [&](Axis axis, std::uint64_t bytes) {
    Traffic all;
    for (const AxisTraffic& counted : of_rank) all += counted.of(axis);
    EXPECT_EQ(all.bytes_sent, steps * bytes) << "axis " << static_cast<int>(axis);
    EXPECT_EQ(all.bytes_received, all.bytes_sent);
    EXPECT_EQ(all.messages_received, all.messages_sent);
  };
  expect_sum(Axis::data, hand.data);
  expect_sum(Axis::pipeline, hand.pipeline);
  expect_sum(Axis::tensor, hand.tensor);
  expect_sum(Axis::control, hand.control);
}

constexpr std::array layouts = {
    AxisLayout{.name = "Alone"},
    AxisLayout{.name = "TwoReplicas", .data = 2},
    AxisLayout{.name = "FourReplicasTiedInBf16", .data = 4, .tied = true, .bf16 = true},
    AxisLayout{.name = "FourStages", .stages = 4, .microbatches_per_lane = 3},
    AxisLayout{.name = "TwoStagesTwoReplicas", .data = 2, .stages = 2, .bf16 = true},
    AxisLayout{
        .name = "TiedEndsOnTwoStages", .data = 2, .stages = 2, .tied = true, .microbatches_per_lane = 2},
    AxisLayout{.name = "TwoSlices", .microbatches_per_lane = 2, .tensor = 2},
    AxisLayout{
        .name = "TwoSlicesInTwoStagesOfTwoReplicas", .data = 2, .stages = 2, .bf16 = true, .tensor = 2},
    AxisLayout{.name = "TwoSlicesRecomputed", .tensor = 2, .recompute = "selective"},
    AxisLayout{.name = "TwoSlicesWithoutBubbles",
               .stages = 2,
               .microbatches_per_lane = 2,
               .tensor = 2,
               .schedule = "zero_bubble",
               .recompute = "full"},
    AxisLayout{
        .name = "ChunksInTurn", .data = 2, .stages = 2, .chunks = 2, .tied = true, .schedule = "interleaved"},

};

INSTANTIATE_TEST_SUITE_P(Layouts, AxisTrafficTest, testing::ValuesIn(layouts),
                         [](const testing::TestParamInfo<AxisLayout>& each) { return each.param.name; });

}  // namespace
}  // namespace holdfast::test
