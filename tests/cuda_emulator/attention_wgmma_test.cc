// Attention forward by products of warpgroups: its bits do not follow from when copies and products run, nor
// from the other sequences of a batch.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <thread>

#include "kernels/cuda/context.h"
#include "kernels/cuda/matmul_cache.h"
#include "kernels/cuda/table.h"
#include "tests/cuda_emulator/attention_case.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/shared_memory.h"

namespace holdfast::test {
namespace {

struct Outputs {
  Values out, lse;
  bool same_bits(const Outputs& other) const { return out.same_bits(other.out) && lse.same_bits(other.lse); }
};

class CudaAttentionWgmma : public testing::Test {
 protected:
  CudaAttentionWgmma() : matmuls_(std::move(cuda::MatmulCache::make()).value()) {
    cuda_emulator::set_compute_capability(90);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }
  ~CudaAttentionWgmma() override {
    cuda_emulator::set_order(0);
    cuda_emulator::set_compute_capability(80);
    cudaStreamDestroy(stream_);
  }
  Outputs run(const AttentionCase& c, std::uint64_t order) {
    const Implementation* implementation = cuda::registry().find(
        OpId::attention_forward, "cuda_wgmma", KernelTarget{.isa = best_cpu_isa(), .gpu = 90});
    HF_CHECK(implementation != nullptr, "no cuda_wgmma");
    Outputs result{random_values(c.out.count(), DType::bf16, 5),
                   random_values(c.lse.count(), DType::fp32, 6)};
    AttentionForward op{
        .qkv = c.qkv.data(), .first_key = c.keys(), .out = result.out.data(), .lse = result.lse.as<float>()};
    c.set_shape(op);
    cuda::Context context(stream_, *matmuls_);
    cuda_emulator::set_order(order);
    implementation->cuda_run(context, &op);
    while (cudaStreamQuery(stream_) == cudaErrorNotReady) std::this_thread::yield();
    EXPECT_EQ(context.error(), cudaSuccess) << context.failed_operation();
    EXPECT_TRUE(result.out.guard_intact() && result.lse.guard_intact());
    return result;
  }

  std::unique_ptr<cuda::MatmulCache> matmuls_;
  cudaStream_t stream_ = nullptr;
};

TEST_F(CudaAttentionWgmma, HasTheSameBitsWheneverCopiesAndProductsRun) {
  constexpr std::uint64_t orders = 5;
  for (const AttentionShape& shape : attention_shapes) {
    SCOPED_TRACE(text_of(shape));
    const AttentionCase c(shape);
    const Outputs first = run(c, 0);
    for (std::uint64_t order = 1; order < orders; ++order)
      EXPECT_TRUE(run(c, order).same_bits(first)) << "order " << order;
  }
}

// Keys of the ring come round several times.
TEST_F(CudaAttentionWgmma, HasTheSameBitsOverManyTiles) {
  const AttentionCase c({1, 1100, 2, 1, 64, 700});
  const Outputs first = run(c, 0);
  for (const std::uint64_t order : {1, 2, 3})
    EXPECT_TRUE(run(c, order).same_bits(first)) << "order " << order;
  for (std::int64_t i = 0; i < c.out.count(); ++i) ASSERT_NEAR(first.out[i], c.out[i], 1.0 / 128) << i;
}

TEST_F(CudaAttentionWgmma, BitsOfASequenceDoNotDependOnTheOthers) {
  for (const AttentionShape& shape : attention_shapes) {
    if (shape.batch == 1) continue;
    SCOPED_TRACE(text_of(shape));
    const AttentionCase c(shape);
    const Outputs together = run(c, 0);
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const Outputs alone = run(c.sequence(b), 2);
      for (std::int64_t i = 0; i < alone.out.count(); ++i)
        ASSERT_EQ(alone.out[i], together.out[b * alone.out.count() + i]) << "sequence " << b << ", " << i;
      for (std::int64_t i = 0; i < alone.lse.count(); ++i)
        ASSERT_EQ(alone.lse[i], together.lse[b * alone.lse.count() + i]) << "sequence " << b << ", " << i;
    }
  }
}

}  // namespace
}  // namespace holdfast::test
