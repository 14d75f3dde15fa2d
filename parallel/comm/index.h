// index: a count of ranks, lanes, buckets or the like, as it indexes a vector.
#pragma once

#include <cstddef>

namespace holdfast::inline parallel {

// Returns the number, which is not negative, as an index.
inline std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

}  // namespace holdfast::inline parallel
