// second: the unit of the tests' times, in the microseconds of event logs.
#pragma once

#include <cstdint>

namespace holdfast::test {

inline constexpr std::int64_t second = 1'000'000;

}  // namespace holdfast::test
