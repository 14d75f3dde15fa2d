// Converts bytes and durations to text for people, and back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/core/result.h"

namespace holdfast::core {

std::string format_bytes(std::uint64_t bytes);  // "512 B", "1.50 GiB"

// Formats a duration exactly, as parse_duration reads it: "3h50m", "1m30s", "500ms", "0s"; negative values
// have a leading '-'.
std::string format_duration(std::int64_t milliseconds);

// Formats seconds with three digits, or all digits before the point: "0.0165 s", "33.1 s", "1260 s".
std::string format_seconds(double seconds);

// Returns the milliseconds of "3h50m", "1.5h", "30s", "500ms", "2d"; a plain number is seconds. Units go from
// large to small, each at most once. ExitCode::config with the accepted forms.
Result<std::int64_t> parse_duration(std::string_view text);

}  // namespace holdfast::core
