#include "runtime/device/op_digests.h"

#include <bit>
#include <limits>

#include "kernels/elementwise.h"
#include "kernels/norm.h"
#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

DigestWords digest_of(const void* values, std::int64_t count) {
  DigestWords words;
  reference(TensorDigest{.values = values, .count = count, .result = &words});
  return words;
}

// y = a + b, then y += a, then a norm of y.
struct Sequence {
  static constexpr std::int64_t count = 48;
  Values a = random_values(count, DType::fp32, 1), b = random_values(count, DType::fp32, 2);
  Values y = Values(count, DType::fp32), first_y = Values(count, DType::fp32);
  Values weight = random_values(16, DType::fp32, 3), out = Values(count, DType::fp32),
         rstd = Values(3, DType::fp32);

  void launch(Device& device) {
    device.launch(Add{.a = a.data(), .b = b.data(), .y = y.data(), .count = count});
    device.launch(Copy{.source = y.data(), .target = first_y.data(), .bytes = 4 * count});
    device.launch(Accumulate{.target = y.as<float>(), .source = a.as<float>(), .count = count});
    device.launch(RmsNormForward{.x = y.data(),
                                 .weight = weight.data(),
                                 .y = out.data(),
                                 .rstd = rstd.as<float>(),
                                 .rows = 3,
                                 .width = 16});
  }
};

TEST(OpDigests, AreOfWhatEachOpHasWritten) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 2});
  std::vector<DigestWords> memory(16);
  OpDigests digests(*device, memory);
  Sequence sequence;
  device->inspect_with(&digests);
  sequence.launch(*device);
  device->inspect_with(nullptr);
  sequence.launch(*device);  // not seen
  device->synchronize();
  const std::vector<OpDigest> expected = {
      {.order = 0, .op = OpId::add, .words = digest_of(sequence.first_y.data(), 48)},
      {.order = 2, .op = OpId::accumulate, .words = digest_of(sequence.y.data(), 48)},
      {.order = 3, .op = OpId::rmsnorm_forward, .words = digest_of(sequence.out.data(), 48)},
      {.order = 3, .op = OpId::rmsnorm_forward, .output = 1, .words = digest_of(sequence.rstd.data(), 3)}};
  EXPECT_EQ(digests.list(), expected);
  EXPECT_EQ(digests.ops(), 4);
  EXPECT_EQ(digests.left_out(), 0);
}

TEST(OpDigests, BeginANewListWhenCleared) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  std::vector<DigestWords> memory(4);
  OpDigests digests(*device, memory);
  device->inspect_with(&digests);
  Sequence sequence;
  sequence.launch(*device);
  device->synchronize();
  const std::vector<OpDigest> before = digests.list();
  digests.clear();
  EXPECT_TRUE(digests.list().empty());
  sequence.launch(*device);
  device->synchronize();
  EXPECT_EQ(digests.list(), before) << "the same ops on the same values";
}

TEST(OpDigests, LeaveOutWhatTheMemoryHasNoRoomFor) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  std::vector<DigestWords> memory(3);
  OpDigests digests(*device, std::span(memory).first(2));
  device->inspect_with(&digests);
  Sequence sequence;
  sequence.launch(*device);
  device->synchronize();
  EXPECT_EQ(digests.list().size(), 2U);
  EXPECT_EQ(digests.left_out(), 2);
  EXPECT_EQ(digests.ops(), 4);
  EXPECT_EQ(memory[2], DigestWords{});
}

TEST(OpDigests, HaveMemoryThatTheHostReads) {
  MemoryPlan plan;
  const MemoryPlan::Slot slot = OpDigests::reserve(plan, 5);
  EXPECT_EQ(slot.kind, MemoryKind::host_visible);
  EXPECT_EQ(slot.bytes, 5 * sizeof(DigestWords));
}

TEST(OpDigests, FindTheOpThatANanComesFrom) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  std::vector<DigestWords> memory(16);
  OpDigests digests(*device, memory);
  device->inspect_with(&digests);
  Sequence sequence;
  sequence.launch(*device);
  device->synchronize();
  EXPECT_FALSE(first_nonfinite(digests.list()).has_value());
  const std::vector<OpDigest> good = digests.list();
  digests.clear();
  sequence.a.set(17, 3e38);  // a + b is finite, y + a is not
  sequence.launch(*device);
  device->synchronize();
  const std::optional<OpDigest> found = first_nonfinite(digests.list());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->order, 2);
  EXPECT_EQ(found->op, OpId::accumulate);
  EXPECT_EQ(found->words.nonfinite, 1U);
  EXPECT_EQ(first_difference(good, digests.list()), 0U);
}

OpDigest with(OpId op, const DigestWords& words) {
  return {.op = op, .words = words};
}

TEST(OpDigestLists, StatisticsMayBeInfinite) {
  OpDigest statistics = with(OpId::cross_entropy_slice, {.nonfinite = 2});
  statistics.may_be_infinite = true;
  const OpDigest loss = with(OpId::loss_sum, {.nonfinite = 1});
  EXPECT_EQ(first_nonfinite(std::vector{statistics, loss}), loss);
  EXPECT_EQ(first_nonfinite(std::vector{statistics}), std::nullopt);
}

TEST(OpDigestLists, DifferWhereTheFirstWordsDiffer) {
  const std::vector<OpDigest> one = {with(OpId::add, {.sum = 1}), with(OpId::add, {.sum = 2})};
  std::vector<OpDigest> other = one;
  EXPECT_EQ(first_difference(one, other), std::nullopt);
  EXPECT_EQ(first_difference(one, {}), std::nullopt) << "nothing to compare";
  other[1].words.weighted = 3;
  EXPECT_EQ(first_difference(one, other), 1U);
  other[0].op = OpId::cast;
  EXPECT_EQ(first_difference(one, other), 0U);
}

OpDigest of_magnitude(std::int64_t order, float largest) {
  return {.order = order, .op = OpId::add, .words = {.largest = std::bit_cast<std::uint32_t>(largest)}};
}

TEST(OpDigestLists, GrowMostWhereEarlierMagnitudesAreExceededMost) {
  const std::vector<OpDigest> digests = {
      of_magnitude(0, 0.0F), of_magnitude(1, 2.0F),  of_magnitude(2, 1.0F),  of_magnitude(3, 6.0F),
      of_magnitude(4, 0.5F), of_magnitude(5, 24.0F), of_magnitude(6, 48.0F), of_magnitude(7, 0.0F)};
  const std::optional<OpGrowth> growth = largest_growth(digests);
  ASSERT_TRUE(growth.has_value());
  EXPECT_EQ(growth->digest.order, 5);
  EXPECT_EQ(growth->factor, 4.0);
  EXPECT_FALSE(largest_growth(std::span(digests).first(3)).has_value()) << "it never grew";
  EXPECT_FALSE(largest_growth({}).has_value());
}

}  // namespace
}  // namespace holdfast::test
