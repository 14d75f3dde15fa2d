// Curves over training steps as inline SVG. Colours come from the page's style sheet by class, so that one
// picture is right on light and dark pages. Pure functions of the data; all numbers are finite.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace holdfast::report {

struct ChartPoint {
  double x = 0.0, y = 0.0;
};

struct ChartCurve {
  std::string name;                // "training loss"
  std::string css_class;           // of its line and dots
  std::vector<ChartPoint> points;  // finite, ascending x
  bool dots = false;
  std::vector<double> gaps = {};  // ascending x where the curve has no value and its line is interrupted
};

// An event at a step: a line over the whole height, or a tick at the axis.
struct ChartMarker {
  double x = 0.0;
  std::string css_class;
  std::string title;  // shown under the pointer
  bool tick = false;
  bool dot = false;  // on top of the line
};

struct Chart {
  std::string label = {};                 // for readers that do not see it
  double width = 1040.0, height = 340.0;  // of the SVG's own units; the page scales it
  bool log_y = false;                     // ignored when a value is not positive
  bool from_zero = false;                 // the value axis starts at 0
  std::vector<ChartCurve> curves = {};
  std::vector<ChartMarker> markers = {};
};

std::string render_chart(const Chart& chart);

// Returns at most `limit` points that keep the curve's shape: the lowest and the highest of each run of
// neighbours.
std::vector<ChartPoint> downsample(const std::vector<ChartPoint>& points, std::size_t limit);
// Returns the mean over the `half_width` neighbours on both sides; near the steep start over fewer, as many
// on each side.
std::vector<ChartPoint> smooth(const std::vector<ChartPoint>& points, std::size_t half_width);

// Chooses the ticks of axes, for every picture. Pure.
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
