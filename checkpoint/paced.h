// Paced work: goes through long memory in parts and shows progress after each, so that a watchdog can tell
// slow from stuck.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

namespace holdfast::checkpoint {

// Callback that gets the bytes of every part that was gone through; may be empty.
using Pace = std::function<void(std::uint64_t bytes)>;

// Calls work(offset, bytes) for parts of at most 16 MiB, in order.
template <typename Work>
void in_paced_parts(std::uint64_t bytes, const Pace& pace, const Work& work) {
  constexpr std::uint64_t part_bytes = 16 << 20;
  for (std::uint64_t offset = 0; offset < bytes; offset += part_bytes) {
    const std::uint64_t part = std::min(part_bytes, bytes - offset);
    work(offset, part);
    if (pace) pace(part);
  }
}

}  // namespace holdfast::checkpoint
