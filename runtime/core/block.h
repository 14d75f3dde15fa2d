#pragma once

#include <cstdint>

namespace holdfast::core {

// Block = at most 4,096 consecutive elements inside one tensor: the unit of sharding, checksums and scalar
// sums.
inline constexpr std::uint64_t block_elements = 4096;

// Returns the number of blocks of a tensor.
constexpr std::int64_t blocks_of(std::int64_t elements) {
  constexpr auto block = static_cast<std::int64_t>(block_elements);
  return (elements + block - 1) / block;
}

}  // namespace holdfast::core
