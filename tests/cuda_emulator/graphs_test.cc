// Launches that come again, as CUDA graphs of the emulated device.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/elementwise.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/op_digests.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

using cuda_emulator::made;

std::unique_ptr<Device> device_with(CudaDeviceOptions options) {
  return std::move(make_cuda_device(options)).value();
}

// y = 2 y + x, in three launches.
struct Sequence {
  Values x = random_values(1000, DType::fp32, 1), y = random_values(1000, DType::fp32, 2);
  Values copy = random_values(1000, DType::fp32, 3);
  void launch(Device& device) {
    device.launch(Copy{.source = y.data(), .target = copy.data(), .bytes = 4000});
    device.launch(Accumulate{.target = y.as<float>(), .source = copy.as<float>(), .count = 1000});
    device.launch(Accumulate{.target = y.as<float>(), .source = x.as<float>(), .count = 1000});
  }
};

TEST(CudaGraphs, GiveTheBitsOfTheLaunchesThatTheyReplace) {
  Sequence expected, repeated, other;
  const std::unique_ptr<Device> plain = device_with({}), device = device_with({.graphs = true});
  const auto graphs = made().counts().graphs;
  int launched = 0;
  for (int turn = 0; turn < 4; ++turn) {
    plain->repeat(7, [&] { expected.launch(*plain); });
    device->repeat(7, [&] {
      repeated.launch(*device);
      ++launched;
    });
    if (turn == 0) device->repeat(8, [&] { other.launch(*device); });
    EXPECT_EQ(made().counts().graphs, turn == 0 ? graphs : graphs + 1)
        << "the first time loads the kernels, the second time is captured";
  }
  EXPECT_EQ(launched, 2) << "later they are taken from the graph";
  plain->synchronize();
  device->synchronize();
  EXPECT_EQ(std::memcmp(repeated.y.data(), expected.y.data(), 4000), 0);
  EXPECT_NE(std::memcmp(other.y.data(), expected.y.data(), 4000), 0) << "once, not four times";
  EXPECT_TRUE(device->status().ok());
}

// The next worker has the same keys and other memory.
TEST(CudaGraphs, AreForgottenWhenOpsArePlannedAnew) {
  auto before = std::make_unique<Sequence>();
  const std::unique_ptr<Device> device = device_with({.graphs = true});
  for (int turn = 0; turn < 3; ++turn) device->repeat(0, [&] { before->launch(*device); });
  device->synchronize();
  Sequence after, expected;
  const std::unique_ptr<Device> plain = device_with({});
  device->begin_planning();
  device->repeat(0, [&] { after.launch(*device); });
  ASSERT_TRUE(device->end_planning().ok());
  before.reset();
  for (int turn = 0; turn < 3; ++turn) {
    device->repeat(0, [&] { after.launch(*device); });
    expected.launch(*plain);
  }
  device->synchronize();
  plain->synchronize();
  EXPECT_EQ(std::memcmp(after.y.data(), expected.y.data(), 4000), 0);
}

TEST(CudaGraphs, TicketsStandBehindThem) {
  Sequence sequence;
  const std::unique_ptr<Device> device = device_with({.graphs = true});
  Device::Ticket last = device->ticket();
  for (int turn = 0; turn < 3; ++turn) {
    device->repeat(0, [&] { sequence.launch(*device); });
    const Device::Ticket ticket = device->ticket();
    EXPECT_GT(ticket, last);
    last = ticket;
  }
  device->synchronize();
  EXPECT_TRUE(device->reached(last));
}

TEST(CudaGraphs, ArePlannedLikeAnythingElse) {
  Sequence sequence;
  const std::unique_ptr<Device> device = device_with({.graphs = true});
  device->begin_planning();
  device->repeat(0, [&] { sequence.launch(*device); });
  ASSERT_TRUE(device->end_planning().ok());
  int launched = 0;
  for (int turn = 0; turn < 3; ++turn) device->repeat(0, [&] { ++launched; });
  EXPECT_EQ(launched, 2) << "planning remembers no launches";
}

TEST(CudaGraphs, AnInspectorSeesEveryOpEveryTime) {
  Sequence sequence, expected;
  const std::unique_ptr<Device> device = device_with({.graphs = true}), plain = device_with({});
  MemoryPlan plan;
  const MemoryPlan::Slot slot = OpDigests::reserve(plan, 8);
  Result<MemoryArena> arena = allocate_memory(*device, plan);
  ASSERT_TRUE(arena.ok());
  OpDigests digests(*device, {arena->at<DigestWords>(slot), 8});
  for (int turn = 0; turn < 4; ++turn) {
    digests.clear();
    device->inspect_with(turn % 2 == 1 ? &digests : nullptr);
    device->repeat(7, [&] { sequence.launch(*device); });
    expected.launch(*plain);
    device->synchronize();
    plain->synchronize();
    if (turn % 2 == 0) continue;
    const std::vector<OpDigest> list = digests.list();
    ASSERT_THAT(list, testing::SizeIs(2)) << "a copy has no output";
    DigestWords words;
    reference(TensorDigest{.values = expected.y.data(), .count = 1000, .result = &words});
    EXPECT_EQ(list[1].words, words);
    EXPECT_EQ(list[1].order, 2);
  }
  EXPECT_EQ(std::memcmp(sequence.y.data(), expected.y.data(), 4000), 0);
  EXPECT_TRUE(device->status().ok());
}

TEST(CudaGraphs, WhoTimesOpsSeesEachOfThem) {
  Sequence sequence;
  std::vector<OpId> seen;
  const std::unique_ptr<Device> device =
      device_with({.timed = [&](OpId id, const void*, std::int64_t) { seen.push_back(id); }, .graphs = true});
  for (int turn = 0; turn < 2; ++turn) device->repeat(0, [&] { sequence.launch(*device); });
  device->synchronize();
  const std::vector<OpId> once = {OpId::copy, OpId::accumulate, OpId::accumulate};
  EXPECT_THAT(seen, testing::SizeIs(6));
  EXPECT_TRUE(std::ranges::equal(std::span(seen).first(3), once));
}

TEST(CudaGraphs, WhatCannotBeCapturedHasASentence) {
  Sequence sequence;
  const std::unique_ptr<Device> device = device_with({.graphs = true});
  for (int turn = 0; turn < 2; ++turn) {
    device->repeat(0, [&] {
      sequence.launch(*device);
      void* memory = nullptr;
      EXPECT_EQ(cudaMalloc(&memory, 64) == cudaSuccess, turn == 0) << "as a kernel of somebody's might do";
      cudaFree(memory);
    });
  }
  device->synchronize();
  const Result<void> status = device->status();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ExitCode::config);
  EXPECT_THAT(
      status.error().message,
      testing::HasSubstr("training.cuda_graphs = true, but not all ops of this run can be captured into a "
                         "CUDA graph: cudaStreamEndCapture"));
  EXPECT_FALSE(device->lost());
}

}  // namespace
}  // namespace holdfast::test
