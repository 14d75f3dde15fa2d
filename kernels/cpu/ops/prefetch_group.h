// Prefetches for kernels that only read a large tensor from one end to the other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

inline constexpr std::int64_t prefetch_step_bytes = 128;

// Called for offset_bytes = 0, 128, 256 ...: prefetches the four pieces of 16 KiB after the group of four
// that the offset is in, a bit of each in turn. One core reads memory 1.3 to 1.5 times as fast in four
// streams as in one.
HF_INLINE void prefetch_group(const void* values, std::int64_t offset_bytes) {
  constexpr std::int64_t streams = 4;
  constexpr std::int64_t piece_bytes = 16384;
  constexpr std::int64_t group_bytes = streams * piece_bytes;
  const std::int64_t step = offset_bytes % group_bytes / prefetch_step_bytes;
  const std::byte* next = static_cast<const std::byte*>(values) +
                          (offset_bytes / group_bytes + 1) * group_bytes + step % streams * piece_bytes +
                          step / streams * prefetch_step_bytes;
  prefetch_far(next);
  prefetch_far(next + prefetch_step_bytes / 2);
}

}  // namespace holdfast::kernels::cpu::HF_ISA
