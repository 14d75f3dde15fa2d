// Statistics of repeated measurements.
#pragma once

#include <vector>

namespace holdfast::measure {

// 0 without values.
double median(std::vector<double> values);

}  // namespace holdfast::measure
