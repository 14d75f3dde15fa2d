// ms: the unit of the tests' times, in the nanoseconds of Env::monotonic_ns.
#pragma once

#include <cstdint>

namespace holdfast::test {

inline constexpr std::int64_t ms = 1'000'000;

}  // namespace holdfast::test
