// Attention by products of warpgroups: its bits do not follow from when copies and products run, nor from the
// other sequences of a batch.
#include "tests/cuda_emulator/attention_case.h"

namespace holdfast::test {
namespace {

class CudaAttentionWgmma : public CudaAttention {
 protected:
  CudaAttentionWgmma() : CudaAttention(90) {}
  static constexpr const char* name = "cuda_wgmma";
  static constexpr const char* tiles = "cuda_wgmma_tiles";
};

TEST_F(CudaAttentionWgmma, HasTheSameBitsWheneverCopiesAndProductsRun) {
  constexpr std::uint64_t orders = 5;
  for (const AttentionShape& shape : attention_shapes) {
    SCOPED_TRACE(text_of(shape));
    const AttentionCase c(shape);
    const Outputs first = run_forward(name, c, 0);
    for (std::uint64_t order = 1; order < orders; ++order)
      EXPECT_TRUE(run_forward(name, c, order).same_bits(first)) << "order " << order;
  }
}

// Keys of the ring come round several times.
TEST_F(CudaAttentionWgmma, HasTheSameBitsOverManyTiles) {
  const AttentionCase c({1, 1100, 2, 1, 64, 700});
  const Outputs first = run_forward(name, c, 0);
  for (const std::uint64_t order : {1, 2, 3})
    EXPECT_TRUE(run_forward(name, c, order).same_bits(first)) << "order " << order;
  for (std::int64_t i = 0; i < c.out.count(); ++i) ASSERT_NEAR(first.out[i], c.out[i], 1.0 / 128) << i;
}

TEST_F(CudaAttentionWgmma, BitsOfASequenceDoNotDependOnTheOthers) {
  for (const AttentionShape& shape : attention_shapes) {
    if (shape.batch == 1) continue;
    SCOPED_TRACE(text_of(shape));
    const AttentionCase c(shape);
    const Outputs together = run_forward(name, c, 0);
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const Outputs alone = run_forward(name, c.sequence(b), 2);
      for (std::int64_t i = 0; i < alone.out.count(); ++i)
        ASSERT_EQ(alone.out[i], together.out[b * alone.out.count() + i]) << "sequence " << b << ", " << i;
      for (std::int64_t i = 0; i < alone.lse.count(); ++i)
        ASSERT_EQ(alone.lse[i], together.lse[b * alone.lse.count() + i]) << "sequence " << b << ", " << i;
    }
  }
}

TEST_F(CudaAttentionWgmma, GradientsHaveTheSameBitsBothWaysWheneverCopiesAndProductsRun) {
  constexpr std::uint64_t orders = 4;
  for (const AttentionShape& shape : attention_shapes) {
    SCOPED_TRACE(text_of(shape));
    const AttentionCase c(shape);
    const Values first = run_backward(name, c);
    for (std::uint64_t order = 1; order < orders; ++order)
      EXPECT_TRUE(run_backward(name, c, 0x3f, order).same_bits(first)) << "order " << order;
    for (const std::uint64_t order : {0, 1, 2})
      EXPECT_TRUE(run_backward(tiles, c, 0x7f, order).same_bits(first)) << "tiles, order " << order;
  }
}

// Keys come round several times, queries often. A product of the emulated device adds in one order, whatever
// its size, and both kernels add products in the same order: there they have the same bits.
TEST_F(CudaAttentionWgmma, GradientsHaveTheBitsOfOtherInstructionsOnThisDevice) {
  constexpr AttentionShape many_tiles[] = {{1, 1100, 2, 1, 64, 700}, {1, 700, 2, 1, 128}};
  for (const AttentionShape& shape : many_tiles) {
    SCOPED_TRACE(text_of(shape));
    const AttentionCase c(shape);
    const Values other = run_backward("cuda_mma5", c);
    for (const std::uint64_t order : {0, 1, 2})
      EXPECT_TRUE(run_backward(name, c, 0x3f, order).same_bits(other)) << "order " << order;
    EXPECT_TRUE(run_backward(tiles, c, 0x3f, 3).same_bits(other));
  }
}

TEST_F(CudaAttentionWgmma, GradientsOfASequenceDoNotDependOnTheOthers) {
  for (const AttentionShape& shape : attention_shapes) {
    if (shape.batch == 1) continue;
    SCOPED_TRACE(text_of(shape));
    const AttentionCase c(shape);
    for (const char* each : {name, tiles}) expect_backward_of_each_alone(each, c, 2);
  }
}

}  // namespace
}  // namespace holdfast::test
