#include "runtime/plan/planned_machine.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "runtime/config/loader.h"
#include "runtime/plan/timed_layers.h"

namespace holdfast::test {
namespace {

Matmul square(std::int64_t n) {
  return {.m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n, .dtype = DType::fp32, .dtype_c = DType::fp32};
}

template <typename Op>
OpTimer::Record record(const Op& op, std::int64_t duration_ns) {
  OpTimer::Record result;
  result.id = Op::id;
  result.duration_ns = duration_ns;
  std::memcpy(result.arguments.data(), &op, sizeof(op));
  return result;
}

template <typename Op>
double price(const OpPrices& prices, const Op& op) {
  return prices.seconds(Op::id, &op);
}

TEST(PeakPrices, TheSlowerOfProductsAndBytesCounts) {
  const double flops = 2.0 * 64 * 64 * 64, bytes = 3.0 * 64 * 64 * sizeof(float);
  EXPECT_DOUBLE_EQ(price(PeakPrices(1e9, 1e30, ""), square(64)), flops * 1e-9);
  EXPECT_DOUBLE_EQ(price(PeakPrices(1e30, 1e9, ""), square(64)), bytes * 1e-9);
}

class TimedPricesTest : public testing::Test {
 protected:
  // Two rounds of each: the slower one counts half, as medians of two do.
  TimedPrices timed(double launch_seconds) const {
    const AdamW update{.tensors = &shard_, .tensor_count = 1};
    std::vector<std::vector<OpTimer::Record>> rounds;
    for (const std::int64_t factor : {1, 3}) {
      rounds.push_back({record(square(64), 1000 * factor), record(update, 7000 * factor)});
    }
    return {rounds, launch_seconds, /*flops_per_second=*/5e9, "timed"};
  }
  OptimizerTensor shard_{.count = 1000};
};

TEST_F(TimedPricesTest, AnOpThatWasTimedTakesItsMedian) {
  EXPECT_DOUBLE_EQ(price(timed(0.0), square(64)), 2e-6);
  EXPECT_DOUBLE_EQ(price(timed(1e-6), square(64)), 3e-6);
}

TEST_F(TimedPricesTest, TheYardstickOfProductsIsMeasuredApart) {
  EXPECT_DOUBLE_EQ(timed(0.0).flops_per_second(), 5e9);
}

TEST_F(TimedPricesTest, AnotherShapeIsScaledByItsProducts) {
  EXPECT_DOUBLE_EQ(price(timed(0.0), square(128)), 8 * 2e-6);
}

TEST_F(TimedPricesTest, AnOpThatNobodyTimedTakesItsBytesAtTheRateOfTheUpdate) {
  const Copy copy{.bytes = 14'000};
  EXPECT_DOUBLE_EQ(timed(0.0).memory_bytes_per_second(), 28'000 / 14e-6);
  EXPECT_DOUBLE_EQ(price(timed(0.0), copy), 14e-6);
}

Config forty_layers() {
  Config config;
  config.threads = 1;
  config.run.directory = "unused";
  config.model.layers = 40;
  config.model.heads = 2;
  config.model.width = 32;
  config.training.steps = 1;
  config.training.sequence_length = 16;
  config.training.microbatch_size = 2;
  config.parallel.pipeline = 2;
  EXPECT_TRUE(resolve_config(config, 256).ok());
  return config;
}

TEST(PriceOpsHere, AFewLayersOfAnyRunAreTimed) {
  const Result<std::unique_ptr<OpPrices>> prices = price_ops_here(posix_env(), forty_layers(), 4);
  ASSERT_TRUE(prices.ok()) << prices.error().message;
  EXPECT_GT((*prices)->memory_bytes_per_second(), 1e6);
  EXPECT_GT(price(**prices, square(64)), 0.0);
  EXPECT_EQ((*prices)->description().find("the ops of 2 layers and the ends of this model"), 0U)
      << (*prices)->description();
}

// No machine has the memory for two layers of this one.
TEST(PriceOpsHere, LayersThatAreTooLargeAreNotRun) {
  Config config = forty_layers();
  config.model.width = 1 << 18;
  config.model.heads = 1 << 11;
  config.model.kv_heads = 1 << 11;
  config.model.feed_forward = 1 << 20;
  const Result<std::unique_ptr<OpPrices>> prices = price_ops_here(posix_env(), config, 1);
  ASSERT_TRUE(prices.ok()) << prices.error().message;
  EXPECT_EQ((*prices)->description().find("measured peaks of this machine"), 0U) << (*prices)->description();
}

}  // namespace
}  // namespace holdfast::test
