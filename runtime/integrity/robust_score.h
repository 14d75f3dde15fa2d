// Robust statistics of a window of numbers: median, spread and scores. They use only arithmetic that IEEE 754
// rounds in one way, so that all ranks get the same bits (verdict.h).
//
// Source: the modified z-score of Iglewicz and Hoaglin (1993), with a floor under the spread, because windows
// of a training that stands still have none.
#pragma once

#include <span>

namespace holdfast::integrity {

// Returns element size / 2 in ascending order, and reorders the values. There is at least one value.
double take_median(std::span<double> values);

struct RobustCentre {
  double median = 0.0;
  double deviation = 0.0;  // 1.4826 x median absolute deviation: the standard deviation of a normal sample
};

// Returns the centre of the values, and overwrites them.
RobustCentre take_centre(std::span<double> values);

// Returns by how many deviations, with the floor added to each, the value is above the centre.
double robust_score(double value, const RobustCentre& centre, double floor);

// Returns the natural logarithm of a finite number > 0 with an error below 1e-9, of others that of the least
// normal double. It does not call the math library.
double plain_log(double value);

}  // namespace holdfast::integrity
