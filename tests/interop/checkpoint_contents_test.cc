#include "runtime/interop/checkpoint_contents.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/interop/checkpoint_diff.h"

namespace holdfast::test {
namespace {

StoredTensor tensor(const std::string& name, std::uint64_t extent) {
  return {.name = name, .shape = {extent}, .kinds = {"weight"}, .pieces = 1, .bytes = 4 * extent};
}

TEST(RowsByLayer, LayersThatAreAlikeAreOneRow) {
  const std::vector<TensorRow> rows =
      rows_by_layer({tensor("embedding.weight", 9), tensor("layers.0.norm.weight", 3),
                     tensor("layers.0.up.weight", 5), tensor("layers.1.norm.weight", 3),
                     tensor("layers.1.up.weight", 6), tensor("layers.2.norm.weight", 3)});
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].name, "embedding.weight");
  EXPECT_EQ(rows[1].name, "layers.{0-2}.norm.weight");
  EXPECT_EQ(rows[1].count, 3U);
  EXPECT_EQ(rows[1].tensor.bytes, 36U);
  EXPECT_EQ(rows[1].tensor.pieces, 3U);
  EXPECT_EQ(rows[2].name, "layers.0.up.weight") << "of another shape than the next";
  EXPECT_EQ(rows[3].name, "layers.1.up.weight");
}

TEST(RowsByLayer, OddNamesStayAsTheyAre) {
  const std::vector<TensorRow> rows = rows_by_layer(
      {tensor("layers.x.a", 1), tensor("layers.1", 1), tensor("layers.3.a", 1), tensor("layers.5.a", 1)});
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[3].name, "layers.5.a") << "a layer is missing between";
}

TEST(CompareElements, NumbersByHand) {
  const ShardSpec spec{.tensor = "t", .kind = "weight", .global_shape = {4, 3}};
  const std::vector<float> a = {1.0F, 2.0F, 0.0F, -4.0F, 5.0F, 6.0F},
                           b = {1.0F, 2.5F, -0.0F, 4.0F, 5.0F, 6.0F};
  TensorDiff diff;
  compare_elements(spec, 6, std::as_bytes(std::span(a)), std::as_bytes(std::span(b)), diff);
  EXPECT_EQ(diff.differing, 3U) << "+0 and -0 have other bits";
  EXPECT_EQ(diff.max_absolute, 8.0);
  EXPECT_EQ(diff.max_relative, 2.0);
  ASSERT_TRUE(diff.first.has_value());
  EXPECT_EQ(diff.first->index, (std::vector<std::uint64_t>{2, 1}));
  EXPECT_EQ(diff.first->a, 2.0);
  EXPECT_EQ(diff.first->b, 2.5);
}

TEST(CompareElements, WhatIsNotFiniteIsInfinitelyFar) {
  const ShardSpec spec{.tensor = "t", .kind = "weight", .global_shape = {2}};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = {nan, 1.0F}, b = {nan, nan};
  TensorDiff diff;
  compare_elements(spec, 0, std::as_bytes(std::span(a)), std::as_bytes(std::span(b)), diff);
  EXPECT_EQ(diff.differing, 1U) << "the same NaN has the same bits";
  EXPECT_TRUE(std::isinf(diff.max_absolute));
  EXPECT_TRUE(std::isinf(diff.max_relative));
}

}  // namespace
}  // namespace holdfast::test
