#pragma once

#include <cstdint>

namespace holdfast::core {

// Block = at most 4,096 consecutive elements inside one tensor: the unit of sharding, checksums and scalar
// sums.
inline constexpr std::uint64_t block_elements = 4096;

}  // namespace holdfast::core
