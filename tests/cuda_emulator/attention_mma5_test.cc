// Attention backward with five products of tiles: what its two ways, cuda_mma and cut batches have in common to
// the last bit, and that it uses no memory but its workspace, whatever is there.
#include <cuda_runtime.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <thread>

#include "kernels/attention.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/matmul_cache.h"
#include "kernels/cuda/table.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

struct Shape {
  std::int64_t batch, length, heads, kv_heads, head_size;
  std::int64_t document = 0;  // mean length; 0 = no documents
  std::int64_t row() const { return (heads + 2 * kv_heads) * head_size; }
};
// Lengths below, at and above tiles of 64 and 128 keys; several heads for a key head; documents that end inside
// of tiles, and that keep whole tiles apart.
constexpr Shape shapes[] = {{2, 1, 1, 1, 64},       {2, 129, 2, 1, 64},      {1, 384, 2, 2, 64},
                            {2, 321, 4, 2, 64, 90}, {1, 500, 3, 1, 64, 300}, {2, 65, 2, 1, 128},
                            {1, 200, 4, 2, 128},    {2, 161, 2, 2, 128, 50}, {1, 256, 2, 1, 128, 200},
                            {1, 300, 1, 1, 64, 4}};

using FirstKeys = std::vector<std::int32_t>;

// An op with its tensors.
struct Case {
  Shape shape;
  Values qkv, out, lse, dout;
  FirstKeys first_key;

  explicit Case(const Shape& s)
      : shape(s),
        qkv(random_values(s.batch * s.length * s.row(), DType::bf16, 1, 2.0)),
        out(s.batch * s.length * s.heads * s.head_size, DType::bf16),
        lse(s.batch * s.length * s.heads, DType::fp32),
        dout(random_values(out.count(), DType::bf16, 2)) {
    for (std::int64_t i = 0; s.document > 0 && i < s.batch * s.length; ++i) {
      const std::int64_t t = i % s.length;
      const bool begins = t == 0 || (random_at(3, i) + 1) / 2 * static_cast<double>(s.document) < 1;
      first_key.push_back(static_cast<std::int32_t>(begins ? t : first_key.back()));
    }
    AttentionForward op{.qkv = qkv.data(), .first_key = keys(), .out = out.data(), .lse = lse.as<float>()};
    set_shape(op);
    reference(op);
  }
  const std::int32_t* keys() const { return first_key.empty() ? nullptr : first_key.data(); }
  void set_shape(auto& op) const {
    op.batch = shape.batch;
    op.sequence_length = shape.length;
    op.heads = shape.heads;
    op.kv_heads = shape.kv_heads;
    op.head_size = shape.head_size;
    op.dtype = DType::bf16;
  }
  // Sequence b alone.
  Case sequence(std::int64_t b) const {
    Case alone = *this;
    alone.shape.batch = 1;
    const auto cut = [&](const Values& whole) {
      const std::int64_t count = whole.count() / shape.batch;
      Values part(count, whole.dtype());
      std::memcpy(
          part.data(),
          static_cast<const std::byte*>(whole.data()) + static_cast<std::size_t>(b) * part.byte_count(),
          part.byte_count());
      return part;
    };
    alone.qkv = cut(qkv);
    alone.out = cut(out);
    alone.lse = cut(lse);
    alone.dout = cut(dout);
    if (!first_key.empty())
      alone.first_key.assign(first_key.begin() + b * shape.length,
                             first_key.begin() + (b + 1) * shape.length);
    return alone;
  }
};

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
  Values run(const char* name, const Case& c, unsigned char poison = 0xff, std::uint64_t order = 0) {
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

std::string text_of(const Shape& s) {
  return fmt::format("{} x {}, {}/{} heads of {}, documents {}", s.batch, s.length, s.heads, s.kv_heads,
                     s.head_size, s.document);
}

TEST_F(CudaAttentionMma5, BothWaysHaveTheSameBitsWhateverTheWorkspaceHolds) {
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(text_of(shape));
    const Case c(shape);
    const Values first = run("cuda_mma5", c);
    EXPECT_TRUE(run("cuda_mma5", c, 0x3f, 1).same_bits(first)) << "another order of blocks and threads";
    for (const std::uint64_t order : {0, 1, 2})
      EXPECT_TRUE(run("cuda_mma5_tiles", c, 0x7f, order).same_bits(first)) << "order " << order;
  }
}

// The pass for keys and values is the same; the gradients of queries have another order of their sums.
TEST_F(CudaAttentionMma5, GradientsOfKeysAndValuesAreThoseOfSevenProducts) {
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(text_of(shape));
    const Case c(shape);
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
  for (const Shape& shape : shapes) {
    if (shape.batch == 1) continue;
    SCOPED_TRACE(text_of(shape));
    const Case c(shape);
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
