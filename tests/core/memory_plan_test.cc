#include "runtime/core/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace holdfast {
namespace {

TEST(MemoryPlan, SlotsAreAlignedDisjointAndNamed) {
  MemoryPlan plan;
  const auto a = plan.reserve("a", MemoryClass::weights, 10);
  const auto b = plan.reserve("b", MemoryClass::activations, 64);
  const auto c = plan.reserve("c", MemoryClass::weights, 0);
  const auto d = plan.reserve("d", MemoryClass::weights, 1);
  EXPECT_EQ(a.offset_bytes, 0u);
  EXPECT_EQ(b.offset_bytes, 64u);
  EXPECT_EQ(c.offset_bytes, 128u);
  EXPECT_EQ(d.offset_bytes, 128u);
  EXPECT_EQ(plan.total_bytes(), 192u);
  EXPECT_EQ(plan.total_bytes(MemoryClass::weights), 11u);
  EXPECT_EQ(plan.total_bytes(MemoryClass::data), 0u);
  ASSERT_EQ(plan.entries().size(), 4u);
  EXPECT_EQ(plan.entries()[1].name, "b");
}

TEST(MemoryArena, IsZeroFilledAlignedAndMovable) {
  MemoryPlan plan;
  const auto first = plan.reserve("first", MemoryClass::weights, 1000);
  const auto second = plan.reserve("second", MemoryClass::workspace, 4 << 20);
  Result<MemoryArena> allocated = MemoryArena::allocate(plan);
  ASSERT_TRUE(allocated.ok()) << allocated.error().message;
  MemoryArena arena = std::move(allocated).value();
  EXPECT_TRUE(std::ranges::all_of(arena.bytes(second), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.at<float>(second)) % MemoryPlan::alignment_bytes, 0u);
  arena.at<std::int32_t>(first)[3] = 77;
  MemoryArena moved = std::move(arena);
  EXPECT_EQ(moved.at<std::int32_t>(first)[3], 77);
  MemoryArena assigned;
  assigned = std::move(moved);
  EXPECT_EQ(assigned.at<std::int32_t>(first)[3], 77);
  EXPECT_EQ(assigned.bytes(first).size(), 1000u);
}

TEST(MemoryArena, EmptyPlanIsFine) {
  const MemoryPlan plan;
  EXPECT_TRUE(MemoryArena::allocate(plan).ok());
}

TEST(MemoryArena, RefusedPlanNamesItsClasses) {
  MemoryPlan plan;
  plan.reserve("weights", MemoryClass::weights, std::uint64_t{3} << 30);
  plan.reserve("logits", MemoryClass::activations, std::uint64_t{1} << 60);
  const Result<MemoryArena> arena = MemoryArena::allocate(plan);
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.error().code, ExitCode::does_not_fit);
  EXPECT_THAT(arena.error().message, testing::HasSubstr("1.00 EiB"));
  EXPECT_THAT(arena.error().message, testing::ContainsRegex("weights +3.00 GiB"));
  EXPECT_THAT(arena.error().message, testing::ContainsRegex("activations +1.00 EiB"));
}

TEST(MemoryPlan, MoreThanTheHostHasIsRefusedBeforeItIsTouched) {
  MemoryPlan plan;
  plan.reserve("weights", MemoryClass::weights, std::uint64_t{3} << 30);
  EXPECT_TRUE(check_fits(plan, std::nullopt, 1).ok());
  EXPECT_TRUE(check_fits(plan, std::uint64_t{6} << 30, 2).ok());
  const Result<void> fits = check_fits(plan, std::uint64_t{6} << 30, 3);
  ASSERT_FALSE(fits.ok());
  EXPECT_EQ(fits.error().code, ExitCode::does_not_fit);
  EXPECT_THAT(fits.error().message,
              testing::HasSubstr("this host has 6.00 GiB available, 2.00 GiB for each of the 3 ranks"));
  EXPECT_THAT(fits.error().message, testing::ContainsRegex("weights +3.00 GiB"));
}

TEST(MemoryPlan, AbsurdSizesDoNotWrapAround) {
  MemoryPlan plan;
  for (int i = 0; i < 10; ++i) plan.reserve("x", MemoryClass::data, ~std::uint64_t{0} - 5);
  EXPECT_FALSE(MemoryArena::allocate(plan).ok());
  EXPECT_GE(plan.total_bytes(), std::uint64_t{1} << 60);
}

}  // namespace
}  // namespace holdfast
