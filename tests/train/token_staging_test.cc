#include "runtime/train/token_staging.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/elementwise.h"
#include "runtime/elastic/planned_rank.h"

namespace holdfast::test {
namespace {

constexpr BatchShapeBT microbatch{.batch = 2, .sequence_length = 8};
constexpr std::int64_t rows = 16;

struct Staged {
  explicit Staged(bool host_sees_memory, bool with_first_keys)
      : device({.host_sees_memory = host_sees_memory}),
        tokens({.microbatch = microbatch, .with_first_keys = with_first_keys, .slots = 3}, device, plan),
        arena(MemoryArena::allocate(plan).value()) {
    tokens.bind(arena);
    device.observe([this](OpId id, const void* arguments) {
      ASSERT_EQ(id, OpId::copy);
      copies.push_back(*static_cast<const Copy*>(arguments));
    });
  }
  PlannedDevice device;
  MemoryPlan plan;
  TokenStaging tokens;
  MemoryArena arena;
  std::vector<Copy> copies = {};
};

const std::vector<std::int32_t> inputs(rows, 3), targets(rows, 5), first_keys(rows, 7);

void expect_tokens(const std::int32_t* found, const std::vector<std::int32_t>& expected) {
  EXPECT_EQ(std::memcmp(found, expected.data(), expected.size() * sizeof(std::int32_t)), 0);
}

TEST(TokenStaging, OneCopyMovesAMicrobatchToADevicesOwnMemory) {
  for (const bool masked : {false, true}) {
    Staged staged(false, masked);
    const TokenBatch batch = staged.tokens.stage(2, inputs, targets, first_keys);
    ASSERT_EQ(staged.copies.size(), 1U);
    const Copy& copy = staged.copies.front();
    EXPECT_EQ(copy.bytes, (masked ? 3 : 2) * rows * static_cast<std::int64_t>(sizeof(std::int32_t)));
    EXPECT_EQ(copy.target, batch.inputs);
    EXPECT_NE(copy.source, copy.target);
    std::memcpy(copy.target, copy.source, static_cast<std::size_t>(copy.bytes));
    expect_tokens(batch.inputs, inputs);
    expect_tokens(batch.targets, targets);
    EXPECT_EQ(batch.first_key != nullptr, masked);
    if (masked) expect_tokens(batch.first_key, first_keys);
    EXPECT_EQ(staged.tokens.at(2).inputs, batch.inputs);
    EXPECT_EQ(staged.plan.total_bytes(MemoryKind::device), staged.plan.total_bytes(MemoryKind::host_visible));
  }
}

TEST(TokenStaging, WhatTheHostSeesIsNotCopied) {
  Staged staged(true, true);
  const TokenBatch batch = staged.tokens.stage(1, inputs, targets, first_keys);
  EXPECT_TRUE(staged.copies.empty());
  expect_tokens(batch.inputs, inputs);
  expect_tokens(batch.first_key, first_keys);
  EXPECT_EQ(staged.plan.total_bytes(MemoryKind::device), 0U);
  staged.tokens.stage(0, targets, inputs, first_keys);
  expect_tokens(batch.inputs, inputs);
}

}  // namespace
}  // namespace holdfast::test
