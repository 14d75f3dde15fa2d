#include "kernels/optimizer.h"

#include "runtime/core/shard_spec.h"
#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

// Tensors: weight, moment1, moment2, gradient, bf16 copy.
Tensors adamw_tensors(std::int64_t count) {
  Tensors tensors = {random_values(count, DType::fp32, 1), random_values(count, DType::fp32, 2, 0.1),
                     random_values(count, DType::fp32, 3, 0.1), random_values(count, DType::fp32, 4),
                     Values(count, DType::bf16)};
  for (std::int64_t i = 0; i < count; ++i) tensors[2].set(i, std::abs(tensors[2][i]) + 1e-3);
  return tensors;
}
AdamW adamw_op(Tensors& t, bool copy) {
  return {.weight = t[0].as<float>(),
          .moment1 = t[1].as<float>(),
          .moment2 = t[2].as<float>(),
          .gradient = t[3].as<float>(),
          .copy = copy ? t[4].as<BFloat16>() : nullptr,
          .count = t[0].count(),
          .learning_rate = 3e-2F,
          .beta1 = 0.9F,
          .beta2 = 0.95F,
          .epsilon = 1e-8F,
          .weight_decay = 0.1F,
          .correction1 = 1.0F - 0.9F * 0.9F,
          .correction2 = 1.0F - 0.95F * 0.95F,
          .gradient_scale = 0.25F};
}

TEST(AdamW, MatchesReference) {
  for (const std::int64_t count : {1, 15, 16, 4096, 20011}) {
    for (const bool copy : {false, true}) {
      SCOPED_TRACE(count);
      expect_op(adamw_tensors(count), [&](Tensors& t) { return adamw_op(t, copy); });
    }
  }
}

TEST(AdamW, CopyIsTheNewWeightRounded) {
  const Tensors result = run_op(
      adamw_tensors(5001), [&](Tensors& t) { return adamw_op(t, true); }, 2, best_cpu_isa());
  for (std::int64_t i = 0; i < result[0].count(); ++i) {
    ASSERT_EQ(result[4][i], static_cast<double>(to_float(to_bfloat16(static_cast<float>(result[0][i])))));
  }
}

TEST(AdamW, FirstStepMovesEachWeightByTheLearningRateAgainstItsGradient) {
  const std::int64_t count = 40;
  Tensors tensors = adamw_tensors(count);
  for (std::int64_t i = 0; i < count; ++i) {
    for (const std::size_t zeroed : {0U, 1U, 2U}) tensors[zeroed].set(i, 0);
  }
  const Tensors result = run_op(
      tensors,
      [&](Tensors& t) {
        AdamW op = adamw_op(t, false);
        op.correction1 = 1.0F - op.beta1;
        op.correction2 = 1.0F - op.beta2;
        return op;
      },
      1, best_cpu_isa());
  for (std::int64_t i = 0; i < count; ++i) EXPECT_NEAR(result[0][i], tensors[3][i] > 0 ? -0.03 : 0.03, 1e-6);
}

TEST(SquareSum, MatchesReference) {
  for (const std::int64_t count : {0, 1, 31, 32, 33, 4096, 4097, 40000}) {
    SCOPED_TRACE(count);
    const std::int64_t blocks = (count + 4095) / 4096;
    expect_op({random_values(count, DType::fp32, 1, 10.0), Values(blocks, DType::fp64)},
              [&](Tensors& t) {
                return SquareSum{.values = t[0].as<float>(), .count = count, .sums = t[1].as<double>()};
              },
              {.tolerance = 1e-14});
  }
}

TEST(SquareSum, OfABlockDoesNotDependOnWhereTheBlockIs) {
  const std::int64_t block = static_cast<std::int64_t>(block_elements);
  const Tensors tensors = {random_values(3 * block, DType::fp32, 1), Values(3, DType::fp64)};
  const auto from = [&](std::int64_t first) {
    return run_op(
        tensors,
        [&](Tensors& t) {
          return SquareSum{.values = t[0].as<float>() + first * block,
                           .count = (3 - first) * block,
                           .sums = t[1].as<double>() + first};
        },
        2, best_cpu_isa())[1];
  };
  EXPECT_EQ(from(0)[2], from(2)[2]);
  EXPECT_EQ(from(0)[1], from(1)[1]);
}

}  // namespace
}  // namespace holdfast::test
