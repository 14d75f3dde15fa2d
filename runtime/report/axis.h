// Chooses the ticks of axes, for every picture. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace holdfast::report {

struct AxisRange {
  double low = 0.0, high = 1.0;
};

// Returns about `count` ticks of a linear axis, at multiples of 1, 2 or 5 times a power of ten. low < high.
std::vector<double> linear_ticks(AxisRange range, double count);
// Returns the ticks of a logarithmic axis: powers of ten, and within three decades also 2 and 5 times these.
// 0 < low < high.
std::vector<double> log_ticks(AxisRange range);
// Returns the ticks of a time axis from 0 to `end_ms`, at most ten intervals apart, of whole seconds, minutes,
// hours or days.
std::vector<std::int64_t> time_ticks_ms(std::int64_t end_ms);

// Formats a number briefly for people: "12.4k", "3.10M", "0.253", "6e-4".
std::string short_number(double value);

}  // namespace holdfast::report
