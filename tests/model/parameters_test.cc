#include "runtime/model/parameters.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <span>
#include <vector>

#include "runtime/core/digest.h"

namespace holdfast::test {
namespace {

std::vector<float> values_of(const ParameterSpec& parameter, std::uint64_t seed) {
  std::vector<float> values(parameter.elements());
  initial_values(parameter, seed, 0, values);
  return values;
}

TEST(InitialValues, AnyPartIsThatPartOfTheWhole) {
  const ParameterSpec parameter{.name = "a.weight", .shape = {50, 40}, .deviation = 0.02F};
  const std::vector<float> whole = values_of(parameter, 3);
  std::vector<float> part(777);
  initial_values(parameter, 3, 1001, part);
  EXPECT_EQ(part, std::vector<float>(whole.begin() + 1001, whole.begin() + 1778));
}

// The bits are part of every run's identity: a change here changes where every training begins.
TEST(InitialValues, BitsArePinned) {
  const ParameterSpec parameter{
      .name = "embedding.token.weight", .shape = {101, 33}, .deviation = 0.02F, .padding_elements = 66};
  DigestStream digest;
  for (const float value : values_of(parameter, 42)) {
    digest.add(std::uint64_t{std::bit_cast<std::uint32_t>(value)});
  }
  EXPECT_EQ(to_hex(digest.finish()), "c228888160efac0f906d8e54c592f9c7");
}

TEST(InitialValues, DependOnSeedAndName) {
  const ParameterSpec a{.name = "a.weight", .shape = {50, 40}, .deviation = 0.02F};
  ParameterSpec b = a;
  b.name = "b.weight";
  EXPECT_EQ(values_of(a, 3), values_of(a, 3));
  EXPECT_NE(values_of(a, 3), values_of(a, 4));
  EXPECT_NE(values_of(a, 3), values_of(b, 3));
}

TEST(InitialValues, AreNormalWithTheDeviation) {
  const ParameterSpec parameter{.name = "a.weight", .shape = {400, 100}, .deviation = 0.02F};
  double sum = 0.0, squares = 0.0;
  for (const float value : values_of(parameter, 1)) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_NEAR(sum / 40'000.0, 0.0, 5 * 0.02 / 200.0);  // five standard errors
  EXPECT_NEAR(std::sqrt(squares / 40'000.0), 0.02, 5 * 0.02 / 282.0);
}

TEST(InitialValues, PaddingIsZeroAndVectorsAreConstant) {
  const ParameterSpec table{.name = "t", .shape = {4, 8}, .deviation = 1.0F, .padding_elements = 8};
  const std::vector<float> values = values_of(table, 1);
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(std::fpclassify(values[i]) == FP_ZERO, i >= 24) << i;
  EXPECT_EQ(values_of({.name = "n", .shape = {3}, .constant = 1.0F}, 1),
            (std::vector<float>{1.0F, 1.0F, 1.0F}));
}

}  // namespace
}  // namespace holdfast::test
