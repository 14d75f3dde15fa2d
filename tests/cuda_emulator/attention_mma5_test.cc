// Attention backward with five products of tiles: what its two ways, cuda_mma and cut batches have in common
// to the last bit, and that it uses no memory but its workspace, whatever is there.
#include "tests/cuda_emulator/attention_case.h"

namespace holdfast::test {
namespace {

class CudaAttentionMma5 : public CudaAttention {
 protected:
  CudaAttentionMma5() : CudaAttention(80) {}
};

TEST_F(CudaAttentionMma5, BothWaysHaveTheSameBitsWhateverTheWorkspaceHolds) {
  for (const AttentionShape& shape : attention_shapes) {
    SCOPED_TRACE(text_of(shape));
    const AttentionCase c(shape);
    const Values first = run_backward("cuda_mma5", c);
    EXPECT_TRUE(run_backward("cuda_mma5", c, 0x3f, 1).same_bits(first))
        << "another order of blocks and threads";
    for (const std::uint64_t order : {0, 1, 2})
      EXPECT_TRUE(run_backward("cuda_mma5_tiles", c, 0x7f, order).same_bits(first)) << "order " << order;
  }
}

// The pass for keys and values is the same; the gradients of queries have another order of their sums.
TEST_F(CudaAttentionMma5, GradientsOfKeysAndValuesAreThoseOfSevenProducts) {
  for (const AttentionShape& shape : attention_shapes) {
    SCOPED_TRACE(text_of(shape));
    const AttentionCase c(shape);
    Values five = run_backward("cuda_mma5", c), seven = run_backward("cuda_mma", c);
    std::int64_t other_keys = 0, other_queries = 0;
    for (std::int64_t i = 0; i < five.count(); ++i) {
      const bool query = i % shape.row() < shape.heads * shape.head_size;
      if (five.as<BFloat16>()[i].bits != seven.as<BFloat16>()[i].bits) ++(query ? other_queries : other_keys);
    }
    EXPECT_EQ(other_keys, 0);
    EXPECT_LT(other_queries, five.count() / 10);
  }
}

TEST_F(CudaAttentionMma5, BitsOfASequenceDoNotDependOnTheOthers) {
  for (const AttentionShape& shape : attention_shapes) {
    if (shape.batch == 1) continue;
    SCOPED_TRACE(text_of(shape));
    const AttentionCase c(shape);
    for (const char* name : {"cuda_mma5", "cuda_mma5_tiles"}) expect_backward_of_each_alone(name, c);
  }
}

}  // namespace
}  // namespace holdfast::test
