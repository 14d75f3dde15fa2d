// index(): converts a number of a rank, lane, bucket or the like to a vector index.
#pragma once

#include <cstddef>

namespace holdfast::parallel {

// Returns the number, which is not negative, as an index.
inline std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

}  // namespace holdfast::parallel
