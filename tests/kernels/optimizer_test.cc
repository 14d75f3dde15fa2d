#include "kernels/optimizer.h"

#include <numeric>

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

// An update of the tensors above, cut into pieces of the given sizes, and the table it points to. Every
// second piece decays.
class AdamWUpdate {
 public:
  AdamWUpdate(std::vector<std::int64_t> counts, bool copy) : counts_(std::move(counts)), copy_(copy) {}
  AdamW operator()(Tensors& t) const {
    table_.clear();
    std::int64_t first = 0, blocks = 0;
    for (const std::int64_t count : counts_) {
      table_.push_back({.weight = t[0].as<float>() + first,
                        .moment1 = t[1].as<float>() + first,
                        .moment2 = t[2].as<float>() + first,
                        .gradient = t[3].as<float>() + first,
                        .copy = copy_ ? t[4].as<BFloat16>() + first : nullptr,
                        .count = count,
                        .first_block = blocks,
                        .weight_decay = table_.size() % 2 == 0 ? 0.1F : 0.0F});
      first += count;
      blocks += (count + 4095) / 4096;
    }
    return {.tensors = table_.data(),
            .tensor_count = static_cast<std::int64_t>(table_.size()),
            .block_count = blocks,
            .learning_rate = 3e-2F,
            .beta1 = 0.9F,
            .beta2 = 0.95F,
            .epsilon = 1e-8F,
            .correction1 = 1.0F - 0.9F * 0.9F,
            .correction2 = 1.0F - 0.95F * 0.95F,
            .gradient_scale = 0.25F};
  }

 private:
  std::vector<std::int64_t> counts_;
  bool copy_;
  // Belongs to the op made last, and lies in memory that the device under test reaches, as tensors do.
  mutable std::vector<AdamWTensor, TensorAllocator<AdamWTensor>> table_;
};

KERNEL_CASES(AdamWMatchesReference, OpId::adamw) {
  for (const std::int64_t count : {1, 15, 16, 4096, 20011}) {
    for (const bool copy : {false, true}) {
      SCOPED_TRACE(count);
      expect_op(adamw_tensors(count), AdamWUpdate({count}, copy));
    }
  }
}

// Pieces shorter and longer than what one thread takes at a time, around the edges of blocks.
KERNEL_CASES(AdamWUpdatesATableOfTensors, OpId::adamw) {
  const std::vector<std::int64_t> counts = {1, 4096, 4097, 16, 100'000, 3, 8192, 70'001};
  const Tensors tensors = adamw_tensors(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  for (const bool copy : {false, true}) {
    expect_op(tensors, AdamWUpdate(counts, copy));
    expect_same_bits_anywhere(tensors, AdamWUpdate(counts, copy));
  }
}

// A copy that starts on a cache line is streamed: the same bits.
KERNEL_CASES(AdamWStreamedCopyHasTheSameBits, OpId::adamw) {
  const std::int64_t count = 100'005;
  Tensors tensors = adamw_tensors(count);
  const AdamWUpdate update({count}, true);
  const auto stored = run_under_test(tensors, update, 2);
  tensors[4].move_to_cache_line();
  expect_op(tensors, update);
  const auto streamed = run_under_test(tensors, update, 2);
  EXPECT_TRUE(!stored || (*streamed)[4].same_bits((*stored)[4]));
}

TEST(AdamW, CopyIsTheNewWeightRounded) {
  const Tensors result = run_op(adamw_tensors(5001), AdamWUpdate({5001}, true), 2, best_cpu_isa());
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
  const AdamWUpdate update({count}, false);
  const Tensors result = run_op(
      tensors,
      [&](Tensors& t) {
        AdamW op = update(t);
        op.correction1 = 1.0F - op.beta1;
        op.correction2 = 1.0F - op.beta2;
        return op;
      },
      1, best_cpu_isa());
  for (std::int64_t i = 0; i < count; ++i) EXPECT_NEAR(result[0][i], tensors[3][i] > 0 ? -0.03 : 0.03, 1e-6);
}

KERNEL_CASES(SquareSumMatchesReference, OpId::square_sum) {
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
