#include "tools/bench_native/step_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/visit_op.h"
#include "runtime/measure/host_limits.h"
#include "tools/bench_native/op_samples.h"

namespace holdfast::test {
namespace {

OpTimer::Record record(const OpCall& call, std::int64_t duration_ns) {
  OpTimer::Record result{.id = call.id(), .duration_ns = duration_ns, .arguments = {}};
  std::memcpy(result.arguments.data(), call.arguments(), result.arguments.size());
  return result;
}

OpCall product(std::int64_t n) {
  return OpCall(Matmul{.m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n});
}

StepBudget sample_budget() {
  static constexpr OptimizerTensor tensor{.count = 1000};
  const OpCall update(AdamW{.tensors = &tensor, .tensor_count = 1}), sum(Add{.count = 1000});
  const auto step = [&](std::int64_t unit_ns) {
    return std::vector<OpTimer::Record>{record(sum, unit_ns), record(product(64), 3 * unit_ns),
                                        record(product(64), 5 * unit_ns), record(product(32), 7 * unit_ns),
                                        record(update, 9 * unit_ns)};
  };
  return make_budget({step(1'000'000), step(2'000'000), step(9'000'000)}, {0.030, 0.060, 0.230});
}

TEST(StepBudget, AddsUpCallsOfAShapeAndTakesMediansOverSteps) {
  const StepBudget budget = sample_budget();
  EXPECT_DOUBLE_EQ(budget.step_seconds, 0.060);
  EXPECT_NEAR(budget.idle_seconds, 0.005, 1e-9);  // of 5, 10 and 5 ms
  ASSERT_EQ(budget.rows.size(), 4U);
  EXPECT_EQ(budget.rows[0].example.id, AdamW::id);  // the longest first
  EXPECT_EQ(budget.rows[1].shape, "64x64x64 NN");
  EXPECT_EQ(budget.rows[1].calls, 2);
  EXPECT_NEAR(budget.rows[1].seconds, 0.016, 1e-12);
  EXPECT_EQ(budget.rows[2].shape, "32x32x32 NN");
  EXPECT_NEAR(budget.of(OpClass::matmul).seconds, 0.030, 1e-12);
  EXPECT_NEAR(budget.of(OpClass::residual).seconds, 0.002, 1e-12);
  EXPECT_NEAR(budget.of(OpClass::optimizer).seconds, 0.018, 1e-12);
}

TEST(StepBudget, TheBoundIsProductsAndAdamW) {
  StepBudget budget = sample_budget();
  for (BudgetRow& row : budget.rows) row.limit_seconds = row.seconds / 2.0;
  EXPECT_NEAR(budget.bound_seconds(), (0.018 + 0.016 + 0.014) / 2.0, 1e-12);
  const std::string text = budget_text(budget);
  EXPECT_THAT(text, testing::HasSubstr("60.00 ms = 2.50 x the bound"));
  const Json json = budget_json(budget);
  EXPECT_NEAR(json["step_over_bound"].get<double>(), 2.5, 1e-9);
  EXPECT_EQ(json["ops"].size(), 4U);
}

TEST(StepBudget, KindsAndPartsAreSumsOfRows) {
  const StepBudget budget = sample_budget();
  EXPECT_EQ(budget.of(Matmul::id).calls, 3);
  EXPECT_NEAR(budget.of(Matmul::id).seconds, 0.030, 1e-12);
  EXPECT_EQ(budget.of(OpId::copy).calls, 0);
  const Json kinds = budget_json(budget)["kinds"];
  EXPECT_EQ(kinds.size(), 3U);
  EXPECT_EQ(kinds["matmul"]["calls"], 3);
  EXPECT_NEAR(kinds["matmul"]["ms"].get<double>(), 30.0, 1e-9);
}

TEST(StepBudget, LimitsAreMeasuredForEveryRow) {
  StepBudget budget = sample_budget();
  HostLimits limits(posix_env(), 2, 1);
  const Result<void> outcome = measure_limits(budget, limits);
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  for (const BudgetRow& row : budget.rows) EXPECT_GT(row.limit_seconds, 0.0) << row.shape;
}

}  // namespace
}  // namespace holdfast::test
