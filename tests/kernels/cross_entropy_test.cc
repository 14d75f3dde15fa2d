#include "kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include "tests/kernels/op_test.h"

namespace holdfast::test {

namespace {

struct Case {
  std::int64_t rows, vocabulary, row_stride;
};

// Tensors: logits, targets, losses. Every fifth target is negative, from the fourth on.
Tensors tensors_of(const Case& c, DType dtype, double scale) {
  Tensors tensors = {random_values(c.rows * c.row_stride, dtype, 1, scale),
                     random_tokens(c.rows, c.vocabulary, 2), random_values(c.rows, DType::fp32, 3)};
  for (std::int64_t row = 3; row < c.rows; row += 5) tensors[1].set(row, -1);
  return tensors;
}

CrossEntropy op_of(Tensors& tensors, const Case& c, float gradient_scale) {
  return {.logits = tensors[0].data(),
          .targets = tensors[1].as<std::int32_t>(),
          .losses = tensors[2].as<float>(),
          .rows = c.rows,
          .row_stride = c.row_stride,
          .vocabulary = c.vocabulary,
          .gradient_scale = gradient_scale,
          .dtype = tensors[0].dtype()};
}

class CrossEntropyCases : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Shapes, CrossEntropyCases,
                         testing::Values(Case{1, 1, 1}, Case{5, 7, 7}, Case{7, 16, 20}, Case{150, 255, 256},
                                         Case{4, 2048, 2048}, Case{5, 5001, 5056}, Case{2, 40000, 40064}));

TEST_P(CrossEntropyCases, LossAndGradient) {
  const Case c = GetParam();
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const double scale : {1.0, 30.0}) {
      expect_op(tensors_of(c, dtype, scale), [&](Tensors& t) { return op_of(t, c, 0.125F); });
    }
  }
}

TEST_P(CrossEntropyCases, ForwardOnlyLeavesLogits) {
  const Case c = GetParam();
  const Tensors tensors = tensors_of(c, DType::fp32, 4.0);
  expect_op(tensors, [&](Tensors& t) { return op_of(t, c, 0.0F); });
  const Tensors result = run_op(
      tensors, [&](Tensors& t) { return op_of(t, c, 0.0F); }, 1, best_cpu_isa());
  EXPECT_TRUE(result[0].same_bits(tensors[0]));
}

TEST(CrossEntropy, ExtremeLogits) {
  const Case c{4, 4100, 4100};
  Tensors tensors = tensors_of(c, DType::fp32, 1e4);
  tensors[0].set(c.row_stride + 4099, 1e4);  // the largest value comes last
  tensors[1].set(1, 4099);
  tensors[0].set(2 * c.row_stride, 1e4);                                    // and first
  for (std::int64_t i = 0; i < c.vocabulary; ++i) tensors[0].set(i, -1e4);  // all equal
  expect_op(tensors, [&](Tensors& t) { return op_of(t, c, 1.0F); });
}

TEST(CrossEntropy, PaddingAndUncountedRowsGetNoGradient) {
  const Case c{5, 100, 112};
  const Tensors result = run_op(
      tensors_of(c, DType::fp32, 1.0), [&](Tensors& t) { return op_of(t, c, 1.0F); }, 2, best_cpu_isa());
  for (std::int64_t i = 0; i < c.row_stride; ++i) EXPECT_EQ(result[0][3 * c.row_stride + i], 0.0);
  EXPECT_EQ(result[2][3], 0.0);
  for (std::int64_t row = 0; row < c.rows; ++row) {
    for (std::int64_t i = c.vocabulary; i < c.row_stride; ++i)
      EXPECT_EQ(result[0][row * c.row_stride + i], 0.0);
  }
}

TEST(CrossEntropy, GradientMatchesFiniteDifferences) {
  const Case c{5, 23, 24};
  const Tensors tensors = tensors_of(c, DType::fp32, 2.0);
  const Tensors result = run_op(
      tensors, [&](Tensors& t) { return op_of(t, c, 1.0F); }, 1, best_cpu_isa());
  Tensors forward = tensors;
  const auto loss = [&] {
    reference(op_of(forward, c, 0.0F));
    double sum = 0;
    for (std::int64_t row = 0; row < c.rows; ++row) sum += forward[2][row];
    return sum;
  };
  expect_gradient(forward[0], result[0], loss, 1e-2, 2e-3, c.rows * c.row_stride);
}

TEST(LossSum, MatchesReference) {
  for (const std::int64_t count : {0, 1, 15, 16, 17, 1000, 4097}) {
    const Tensors tensors = {random_values(count, DType::fp32, 4, 10.0), random_values(1, DType::fp64, 5)};
    expect_op(tensors,
              [&](Tensors& t) {
                return LossSum{.values = t[0].as<float>(), .count = count, .sum = t[1].as<double>()};
              },
              {.tolerance = 1e-12});
  }
}

}  // namespace

}  // namespace holdfast::test
