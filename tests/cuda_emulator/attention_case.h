// Shapes and tensors of attention and what runs its kernels by name, for tests of their bits on the emulated
// device.
#pragma once

#include <cuda_runtime.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/matmul_cache.h"
#include "kernels/cuda/table.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/kernels/op_test.h"

namespace holdfast::test {

struct AttentionShape {
  std::int64_t batch, length, heads, kv_heads, head_size;
  std::int64_t document = 0;  // mean length; 0 = no documents
  std::int64_t row() const { return (heads + 2 * kv_heads) * head_size; }
};
// Lengths below, at and above tiles of 64 and 128 keys; several heads for a key head; documents that end
// inside of tiles, and that keep whole tiles apart.
inline constexpr AttentionShape attention_shapes[] = {
    {2, 1, 1, 1, 64},         {2, 129, 2, 1, 64},   {1, 384, 2, 2, 64},  {2, 321, 4, 2, 64, 90},
    {1, 500, 3, 1, 64, 300},  {2, 65, 2, 1, 128},   {1, 200, 4, 2, 128}, {2, 161, 2, 2, 128, 50},
    {1, 256, 2, 1, 128, 200}, {1, 300, 1, 1, 64, 4}};

using FirstKeys = std::vector<std::int32_t>;

// An op with its tensors.
struct AttentionCase {
  AttentionShape shape;
  Values qkv, out, lse, dout;
  FirstKeys first_key;

  explicit AttentionCase(const AttentionShape& s)
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
  AttentionCase sequence(std::int64_t b) const {
    AttentionCase alone = *this;
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

inline std::string text_of(const AttentionShape& s) {
  return fmt::format("{} x {}, {}/{} heads of {}, documents {}", s.batch, s.length, s.heads, s.kv_heads,
                     s.head_size, s.document);
}

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

class CudaAttention : public testing::Test {
 protected:
  explicit CudaAttention(int compute_capability)
      : compute_capability_(compute_capability), matmuls_(std::move(cuda::MatmulCache::make()).value()) {
    cuda_emulator::set_compute_capability(compute_capability);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }
  ~CudaAttention() override {
    constexpr int usual = 80;
    cuda_emulator::set_order(0);
    cuda_emulator::set_compute_capability(usual);
    cudaStreamDestroy(stream_);
  }

  struct Outputs {
    Values out, lse;
    bool same_bits(const Outputs& other) const {
      return out.same_bits(other.out) && lse.same_bits(other.lse);
    }
  };
  // Blocks run in `order`.
  Outputs run_forward(const char* name, const AttentionCase& c, std::uint64_t order) {
    Outputs result{random_values(c.out.count(), DType::bf16, 5),
                   random_values(c.lse.count(), DType::fp32, 6)};
    AttentionForward op{
        .qkv = c.qkv.data(), .first_key = c.keys(), .out = result.out.data(), .lse = result.lse.as<float>()};
    run(op, name, c, 0xff, order);
    EXPECT_TRUE(result.out.guard_intact() && result.lse.guard_intact()) << name;
    return result;
  }
  // Returns the gradients of qkv. The workspace is full of `poison` at first.
  Values run_backward(const char* name, const AttentionCase& c, unsigned char poison = 0xff,
                      std::uint64_t order = 0) {
    Values dqkv = random_values(c.qkv.count(), DType::bf16, 4), delta(c.lse.count(), DType::fp32);
    AttentionBackward op{.qkv = c.qkv.data(),
                         .first_key = c.keys(),
                         .out = c.out.data(),
                         .dout = c.dout.data(),
                         .lse = static_cast<const float*>(c.lse.data()),
                         .delta = delta.as<float>(),
                         .dqkv = dqkv.data()};
    run(op, name, c, poison, order);
    EXPECT_TRUE(dqkv.guard_intact() && delta.guard_intact()) << name;
    return dqkv;
  }
  // Expects the gradients of every sequence of a batch to have the bits that it has alone.
  void expect_backward_of_each_alone(const char* name, const AttentionCase& c, std::uint64_t order = 0) {
    const Values together = run_backward(name, c);
    for (std::int64_t b = 0; b < c.shape.batch; ++b) {
      const Values alone = run_backward(name, c.sequence(b), 0xff, order);
      EXPECT_EQ(std::memcmp(alone.data(),
                            static_cast<const std::byte*>(together.data()) +
                                static_cast<std::size_t>(b) * alone.byte_count(),
                            alone.byte_count()),
                0)
          << name << ", sequence " << b;
    }
  }

 private:
  template <typename Op>
  void run(Op& op, const char* name, const AttentionCase& c, unsigned char poison, std::uint64_t order) {
    const Implementation* implementation =
        cuda::registry().find(Op::id, name, KernelTarget{.isa = best_cpu_isa(), .gpu = compute_capability_});
    HF_CHECK(implementation != nullptr, "no {}", name);
    c.set_shape(op);
    cuda::Context context(stream_, *matmuls_);
    if (implementation->cuda_prepare != nullptr) implementation->cuda_prepare(context, &op);
    Workspace workspace(context.requested_bytes(), poison);
    context.set_workspace(workspace.data());
    cuda_emulator::set_order(order);
    implementation->cuda_run(context, &op);
    while (cudaStreamQuery(stream_) == cudaErrorNotReady) std::this_thread::yield();
    EXPECT_EQ(context.error(), cudaSuccess) << context.failed_operation();
    EXPECT_TRUE(workspace.guard_intact()) << name << ": written past the workspace that it asked for";
  }

  int compute_capability_;
  std::unique_ptr<cuda::MatmulCache> matmuls_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace holdfast::test
