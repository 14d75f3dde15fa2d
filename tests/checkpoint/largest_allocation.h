// How large the largest allocation was: numbers in files decide about memory only after they were verified.
#pragma once

#include <cstdint>

namespace holdfast::test {

// Counts, on all threads, from its construction on. One at a time. bytes() is 0 with a sanitizer, which
// brings its own operator new.
class LargestAllocation {
 public:
  LargestAllocation();
  ~LargestAllocation();
  LargestAllocation(const LargestAllocation&) = delete;
  LargestAllocation& operator=(const LargestAllocation&) = delete;
  std::uint64_t bytes() const;
};

}  // namespace holdfast::test
