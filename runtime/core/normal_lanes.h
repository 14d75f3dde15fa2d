// RandomStream::normal for many elements at once, with vector instructions. Every lane does the operations of
// the scalar definition in the same order, and IEEE 754 fixes each of them (no fused multiply-add, no
// approximate division or root), so the bits are the same on every instruction set.
#pragma once

#include <cstdint>
#include <span>

namespace holdfast::core {

inline constexpr std::int64_t normal_lanes = 8;

// Sets values[i] = deviation * the normal of element first_element + i of the stream with this key, for i in
// [0, count); count is a multiple of normal_lanes.
using FillNormals = void (*)(std::uint64_t key, std::uint64_t first_element, float deviation, float* values,
                             std::int64_t count);

struct NormalFiller {
  const char* instruction_set;
  FillNormals fill;
};

// Returns the fillers that this processor can run, the fastest last; never empty.
std::span<const NormalFiller> normal_fillers();

}  // namespace holdfast::core
