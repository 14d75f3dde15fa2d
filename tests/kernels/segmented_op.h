// For tests of ops over segments (kernels/elementwise.h).
#pragma once

#include <vector>

#include "kernels/elementwise.h"
#include "tests/kernels/op_test.h"

namespace holdfast::test {

// Returns segments of one block and of several, with padding between them.
inline std::vector<BlockSegment> padded_segments(std::int64_t segment_count) {
  constexpr std::int64_t sizes[] = {1, 4096, 15, 4097, 9000, 31}, alignment = 16;
  std::vector<BlockSegment> segments;
  BlockSegment next;
  for (std::int64_t i = 0; i < segment_count; ++i) {
    next.count = sizes[i % std::size(sizes)];
    segments.push_back(next);
    next.first += (next.count + alignment - 1) / alignment * alignment;
    next.first_block += blocks_of(next.count);
  }
  return segments;
}

// Inside KERNEL_CASES. One op over segments has the bits of one op for each, and leaves what is between them. part(tensors,
// segment) makes the op of a segment from `arrays` arrays of fp32, sums and digests by block.
template <typename Part>
void expect_like_each_segment(std::size_t arrays, const Part& part) {
  for (const std::int64_t segment_count : {1, 2, 3, 64, 65, 150}) {
    SCOPED_TRACE(segment_count);
    const std::vector<BlockSegment> segments = padded_segments(segment_count);
    const BlockSegment& last = segments.back();
    const BlockSegment whole = {.count = last.first + last.count};
    const std::int64_t blocks = blocks_of(segments.data(), segment_count, 0);
    Tensors tensors;
    while (tensors.size() < arrays)
      tensors.push_back(random_values(whole.count, DType::fp32, tensors.size()));
    for (int i = 0; i < 2; ++i) tensors.emplace_back(blocks, DType::fp64);
    for (const int threads : under_test()->thread_counts()) {
      const auto made = run_under_test(
          tensors,
          [&](Tensors& t) {
            auto op = part(t, whole);
            op.segments = segments.data();
            op.segment_count = segment_count;
            return op;
          },
          threads);
      if (!made) return;
      Tensors expected = tensors;
      for (const BlockSegment& each : segments)
        expected = *run_under_test(
            expected, [&](Tensors& t) { return part(t, each); }, threads);
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        EXPECT_TRUE((*made)[t].same_bits(expected[t])) << "tensor " << t;
        EXPECT_TRUE((*made)[t].guard_intact()) << "tensor " << t;
      }
    }
  }
}

}  // namespace holdfast::test
