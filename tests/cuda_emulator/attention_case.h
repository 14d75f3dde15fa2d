// Shapes and tensors of attention, for tests of the bits of its kernels on the emulated device.
#pragma once

#include <fmt/core.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/attention.h"
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

}  // namespace holdfast::test
