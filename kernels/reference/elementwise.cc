#include "kernels/elementwise.h"

#include <span>

#include "kernels/optimizer.h"
#include "kernels/reference/element.h"

namespace holdfast::kernels {

void reference(const Add& op) {
  for (std::int64_t i = 0; i < op.count; ++i) {
    set_element(op.y, i, op.dtype, element(op.a, i, op.dtype) + element(op.b, i, op.dtype));
  }
}

void reference(const Accumulate& op) {
  const BlockSegment whole = {.count = op.count};
  const bool has_segments = op.segment_count > 0;
  for (const BlockSegment& segment :
       std::span(has_segments ? op.segments : &whole,
                 has_segments ? static_cast<std::size_t>(op.segment_count) : 1)) {
    for (std::int64_t i = segment.first; i < segment.first + segment.count; ++i)
      op.target[i] =
          static_cast<float>(static_cast<double>(op.target[i]) + static_cast<double>(op.source[i]));
  }
  if (op.square_sums != nullptr) {
    reference(SquareSum{.values = op.target,
                        .count = op.count,
                        .sums = op.square_sums,
                        .digests = op.digests,
                        .segments = op.segments,
                        .segment_count = op.segment_count});
  }
}

void reference(const Cast& op) {
  for (std::int64_t i = 0; i < op.count; ++i) op.target[i] = to_bfloat16(op.source[i]);
}

void reference(const FillZero& op) {
  for (std::int64_t i = 0; i < op.bytes; ++i) static_cast<std::byte*>(op.target)[i] = std::byte{0};
}

void reference(const Copy& op) {
  for (std::int64_t i = 0; i < op.bytes; ++i) {
    static_cast<std::byte*>(op.target)[i] = static_cast<const std::byte*>(op.source)[i];
  }
}

void reference(const CopyRows& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    for (std::int64_t i = 0; i < op.columns; ++i)
      set_element(op.target, row * op.target_stride + i, op.dtype,
                  element(op.source, row * op.source_stride + i, op.dtype));
  }
}

}  // namespace holdfast::kernels
