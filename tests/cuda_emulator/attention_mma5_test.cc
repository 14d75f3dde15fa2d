// Attention backward with five products of tiles: what its two ways, cuda_mma and cut batches have in common
// to the last bit, and that it uses no memory but its workspace, whatever is there.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <thread>

#include "kernels/attention.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/matmul_cache.h"
#include "kernels/cuda/table.h"
#include "tests/cuda_emulator/attention_case.h"
#include "tests/cuda_emulator/emulator.h"

namespace holdfast::test {
namespace {

// Device memory for a kernel: exactly what it asked for, then a guard.
class Workspace {
 public:
  Workspace(std::size_t bytes, unsigned char poison) : bytes_(bytes), lines_(bytes / sizeof(Line) + 3) {
    std::memset(data(), poison, bytes);
    std::memset(data() + bytes, guard, sizeof(Line));
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(lines_.data()); }
  bool guard_intact() {
    return std::all_of(data() + bytes_, data() + bytes_ + sizeof(Line),
                       [](std::byte b) { return b == std::byte{guard}; });
  }

 private:
  static constexpr unsigned char guard = 0xa5;
  struct alignas(256) Line {
    std::byte bytes[256];
  };
  std::size_t bytes_;
  std::vector<Line> lines_;
};

class CudaAttentionMma5 : public testing::Test {
 protected:
  CudaAttentionMma5() : matmuls_(std::move(cuda::MatmulCache::make()).value()) {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }
  ~CudaAttentionMma5() override {
    cuda_emulator::set_order(0);
    cudaStreamDestroy(stream_);
  }
  // Returns the gradients of qkv. The workspace is full of `poison` at first, and blocks run in `order`.
  Values run(const char* name, const AttentionCase& c, unsigned char poison = 0xff, std::uint64_t order = 0) {
    const Implementation* implementation =
        cuda::registry().find(OpId::attention_backward, name, best_cpu_isa());
    HF_CHECK(implementation != nullptr, "no {}", name);
    Values dqkv = random_values(c.qkv.count(), DType::bf16, 4), delta(c.lse.count(), DType::fp32);
    AttentionBackward op{.qkv = c.qkv.data(),
                         .first_key = c.keys(),
                         .out = c.out.data(),
                         .dout = c.dout.data(),
                         .lse = static_cast<const float*>(c.lse.data()),
                         .delta = delta.as<float>(),
                         .dqkv = dqkv.data()};
    c.set_shape(op);
    cuda::Context context(stream_, *matmuls_);
    if (implementation->cuda_prepare != nullptr) implementation->cuda_prepare(context, &op);
    Workspace workspace(context.requested_bytes(), poison);
    context.set_workspace(workspace.data());
    cuda_emulator::set_order(order);
    implementation->cuda_run(context, &op);
    while (cudaStreamQuery(stream_) == cudaErrorNotReady) std::this_thread::yield();
    EXPECT_EQ(context.error(), cudaSuccess);
    EXPECT_TRUE(workspace.guard_intact()) << name << ": written past the workspace that it asked for";
    EXPECT_TRUE(dqkv.guard_intact() && delta.guard_intact()) << name;
    return dqkv;
  }

  std::unique_ptr<cuda::MatmulCache> matmuls_;
  cudaStream_t stream_ = nullptr;
};

TEST_F(CudaAttentionMma5, BothWaysHaveTheSameBitsWhateverTheWorkspaceHolds) {
  for (const AttentionShape& shape : attention_shapes) {
    SCOPED_TRACE(text_of(shape));
    const AttentionCase c(shape);
    const Values first = run("cuda_mma5", c);
    EXPECT_TRUE(run("cuda_mma5", c, 0x3f, 1).same_bits(first)) << "another order of blocks and threads";
    for (const std::uint64_t order : {0, 1, 2})
      EXPECT_TRUE(run("cuda_mma5_tiles", c, 0x7f, order).same_bits(first)) << "order " << order;
  }
}

// The pass for keys and values is the same; the gradients of queries have another order of their sums.
TEST_F(CudaAttentionMma5, GradientsOfKeysAndValuesAreThoseOfSevenProducts) {
  for (const AttentionShape& shape : attention_shapes) {
    SCOPED_TRACE(text_of(shape));
    const AttentionCase c(shape);
    Values five = run("cuda_mma5", c), seven = run("cuda_mma", c);
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
    for (const char* name : {"cuda_mma5", "cuda_mma5_tiles"}) {
      const Values together = run(name, c);
      for (std::int64_t b = 0; b < shape.batch; ++b) {
        const Values alone = run(name, c.sequence(b));
        EXPECT_EQ(std::memcmp(alone.data(),
                              static_cast<const std::byte*>(together.data()) +
                                  static_cast<std::size_t>(b) * alone.byte_count(),
                              alone.byte_count()),
                  0)
            << name << ", sequence " << b;
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::test
