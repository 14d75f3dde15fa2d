#include "runtime/core/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace holdfast::test {
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

TEST(MemoryArena, EachPlaceIsOneAllocationOfTheSource) {
  MemoryPlan plan;
  const auto weights = plan.reserve("weights", MemoryClass::weights, 1000);
  const auto tokens = plan.reserve("tokens", MemoryClass::data, 100, MemoryKind::host_visible);
  const auto moments = plan.reserve("moments", MemoryClass::optimizer, 2000);
  EXPECT_EQ(plan.total_bytes(MemoryKind::device), 1024U + 2048U);
  EXPECT_EQ(plan.total_bytes(MemoryKind::host_visible), 128U);
  EXPECT_EQ(plan.total_bytes(), 1024U + 2048U + 128U);
  std::vector<std::byte*> bases;
  const auto source = [&](MemoryKind place, std::uint64_t bytes) {
    EXPECT_EQ(bytes, plan.total_bytes(place));
    Result<OwnedMemory> memory = host_memory(place, bytes);
    bases.push_back(memory.value().get());
    return memory;
  };
  const Result<MemoryArena> arena = MemoryArena::allocate(plan, source);
  ASSERT_TRUE(arena.ok());
  ASSERT_EQ(bases.size(), 2U);
  EXPECT_EQ(arena->at<std::byte>(weights), bases[0]);
  EXPECT_EQ(arena->at<std::byte>(moments), bases[0] + 1024);
  EXPECT_EQ(arena->at<std::byte>(tokens), bases[1]);
  EXPECT_EQ(arena->bytes(tokens).size(), 100U);
}

TEST(MemoryArena, WhatTheSourceSaysIsInTheSentence) {
  MemoryPlan plan;
  plan.reserve("weights", MemoryClass::weights, 1000);
  const auto refused = [](ExitCode code) {
    return [code](MemoryKind, std::uint64_t) -> Result<OwnedMemory> { return fail(code, "GPU 3 is away"); };
  };
  const Result<MemoryArena> full = MemoryArena::allocate(plan, refused(ExitCode::does_not_fit));
  ASSERT_FALSE(full.ok());
  EXPECT_THAT(full.error().message, testing::HasSubstr("does not fit: GPU 3 is away; reduce the model"));
  const Result<MemoryArena> broken = MemoryArena::allocate(plan, refused(ExitCode::communication));
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().code, ExitCode::communication);
  EXPECT_EQ(broken.error().message, "GPU 3 is away");
}

TEST(MemoryPlan, DeviceMemoryOfAGpuIsNotTheHosts) {
  MemoryPlan plan;
  plan.reserve("weights", MemoryClass::weights, std::uint64_t{3} << 30);
  plan.reserve("tokens", MemoryClass::data, std::uint64_t{1} << 30, MemoryKind::host_visible);
  EXPECT_FALSE(check_fits(plan, std::uint64_t{2} << 30, 1).ok());
  EXPECT_TRUE(check_fits(plan, std::uint64_t{2} << 30, 2, /*device_is_host=*/false).ok());
  EXPECT_FALSE(check_fits(plan, std::uint64_t{2} << 30, 3, /*device_is_host=*/false).ok());
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
}  // namespace holdfast::test
