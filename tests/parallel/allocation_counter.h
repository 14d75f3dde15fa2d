// Counts every allocation by operator new of the test program, of all threads.
#pragma once

#include <cstdint>

namespace holdfast::test {

std::uint64_t allocation_count();

}  // namespace holdfast::test
