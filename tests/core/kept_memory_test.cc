#include "runtime/core/kept_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace holdfast::test {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

class KeptMemoryTest : public testing::Test {
 protected:
  Result<MemoryArena> arena(std::uint64_t bytes) {
    plan = {};
    slot = plan.reserve("all", MemoryClass::workspace, bytes);
    return MemoryArena::allocate(
        plan, kept.source({.device_is_host = on_host, .threads = 2, .progress = [this] { ++calls; }},
                          [this](MemoryKind place, std::uint64_t wanted) {
                            ++made;
                            return host_memory(place, wanted);
                          }));
  }
  std::span<std::byte> bytes_of(const Result<MemoryArena>& arena) const { return arena->bytes(slot); }

  KeptMemory kept;
  MemoryPlan plan;
  MemoryPlan::Slot slot;
  bool on_host = true;
  int made = 0, calls = 0;
};

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return std::ranges::all_of(bytes, [value](std::byte each) { return each == value; });
}

TEST_F(KeptMemoryTest, GrowsWithItsContentAndZerosBehindIt) {
  {
    const Result<MemoryArena> first = arena(3 * mib);
    ASSERT_TRUE(first.ok());
    EXPECT_TRUE(all_are(bytes_of(first), std::byte{0}));
    EXPECT_EQ(kept.reused_bytes(), 0U);
    std::ranges::fill(bytes_of(first), std::byte{7});
  }
  EXPECT_EQ(kept.bytes(), 4 * mib);  // whole huge pages
  const Result<MemoryArena> second = arena(40 * mib);
  ASSERT_TRUE(second.ok());
  EXPECT_GT(calls, 0);
  EXPECT_EQ(kept.reused_bytes(), 4 * mib);
  EXPECT_TRUE(all_are(bytes_of(second).first(3 * mib), std::byte{7}));
  EXPECT_TRUE(all_are(bytes_of(second).subspan(3 * mib), std::byte{0}));
  EXPECT_EQ(made, 0);
}

TEST_F(KeptMemoryTest, GivesBackWhatASmallerPlanDoesNotNeed) {
  ASSERT_TRUE(arena(40 * mib).ok());
  ASSERT_TRUE(arena(5 * mib).ok());
  EXPECT_EQ(kept.bytes(), 6 * mib);
  kept.release();
  EXPECT_EQ(kept.bytes(), 0U);
}

TEST_F(KeptMemoryTest, CanBeSpoiledForThoseWhoRelyOnZeros) {
  ASSERT_TRUE(arena(mib).ok());
  kept.spoil_reused(true);
  const Result<MemoryArena> second = arena(3 * mib);
  EXPECT_TRUE(all_are(bytes_of(second).first(mib), std::byte{0xff}));
  EXPECT_TRUE(all_are(bytes_of(second).subspan(2 * mib), std::byte{0}));
}

TEST_F(KeptMemoryTest, OfADeviceIsReusedWhereItFits) {
  on_host = false;
  ASSERT_TRUE(arena(4 * mib).ok());
  ASSERT_TRUE(arena(2 * mib).ok());
  EXPECT_EQ(made, 1);
  EXPECT_EQ(kept.reused_bytes(), 2 * mib);
  EXPECT_EQ(kept.bytes(), 4 * mib);
  ASSERT_TRUE(arena(5 * mib).ok());
  EXPECT_EQ(made, 2);
  EXPECT_EQ(kept.reused_bytes(), 0U);
}

TEST(FaultIn, KeepsTheContent) {
  const Result<OwnedMemory> memory = host_memory(MemoryKind::device, 40 * mib);
  ASSERT_TRUE(memory.ok());
  const std::span<std::byte> bytes(memory->get(), 40 * mib);
  bytes[20 * mib] = std::byte{9};
  fault_in(bytes, 3);
  EXPECT_EQ(bytes[20 * mib], std::byte{9});
  EXPECT_EQ(bytes[39 * mib], std::byte{0});
}

}  // namespace
}  // namespace holdfast::test
