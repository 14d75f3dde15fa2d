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

constexpr Case cases[] = {Case{1, 1, 1},       Case{5, 7, 7},       Case{7, 16, 20},      Case{150, 255, 256},
                          Case{4, 2048, 2048}, Case{5, 5001, 5056}, Case{2, 40000, 40064}};

KERNEL_CASES(CrossEntropyLossAndGradient, OpId::cross_entropy) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.vocabulary);
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      for (const double scale : {1.0, 30.0}) {
        expect_op(tensors_of(c, dtype, scale), [&](Tensors& t) { return op_of(t, c, 0.125F); });
      }
    }
  }
}

KERNEL_CASES(CrossEntropyHasTheSameBitsAnywhere, OpId::cross_entropy) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Case& c : {Case{7, 16, 24}, Case{5, 5001, 5056}}) {
      SCOPED_TRACE(c.vocabulary);
      expect_same_bits_anywhere(tensors_of(c, dtype, 4.0), [&](Tensors& t) { return op_of(t, c, 0.125F); });
    }
  }
}

KERNEL_CASES(CrossEntropyForwardOnlyLeavesLogits, OpId::cross_entropy) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.vocabulary);
    const Tensors tensors = tensors_of(c, DType::fp32, 4.0);
    const auto bind = [&](Tensors& t) { return op_of(t, c, 0.0F); };
    expect_op(tensors, bind);
    const auto result = run_under_test(tensors, bind);
    EXPECT_TRUE(!result || (*result)[0].same_bits(tensors[0]));
  }
}

KERNEL_CASES(CrossEntropyOfExtremeLogits, OpId::cross_entropy) {
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

KERNEL_CASES(LossSumMatchesReference, OpId::loss_sum) {
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
