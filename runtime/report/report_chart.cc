#include "runtime/report/report_chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "runtime/report/report_page.h"

namespace holdfast::report {
namespace {

constexpr std::size_t hover_bands = 120;

void include(AxisRange& range, bool& empty, double value) {
  range.low = empty ? value : std::min(range.low, value);
  range.high = empty ? value : std::max(range.high, value);
  empty = false;
}

// Draws one chart: knows where data is on the page.
class Canvas {
 public:
  explicit Canvas(const Chart& chart) : chart_(chart) { choose_ranges(); }

  std::string draw() {
    out_ = fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                       chart_.width, chart_.height, escape_html(chart_.label));
    draw_axes();
    draw_bands();
    for (const ChartMarker& marker : chart_.markers) draw_marker(marker);
    for (const ChartCurve& curve : chart_.curves) draw_curve(curve);
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  static constexpr double left = 52.0, right_space = 14.0, top = 12.0, bottom_space = 26.0;
  double right() const { return chart_.width - right_space; }
  double bottom() const { return chart_.height - bottom_space; }

  void choose_ranges() {
    bool no_x = true, no_y = true;
    for (const ChartCurve& curve : chart_.curves) {
      for (const ChartPoint& point : curve.points) {
        include(x_, no_x, point.x);
        include(y_, no_y, point.y);
      }
    }
    for (const ChartMarker& marker : chart_.markers) include(x_, no_x, marker.x);
    log_ = chart_.log_y && !no_y && y_.low > 0.0;
    if (chart_.from_zero && !log_) y_ = {.low = std::min(0.0, y_.low), .high = std::max(0.0, y_.high)};
    if (x_.low > 0.0 && x_.low < 0.1 * x_.high) x_.low = 0.0;
    if (x_.high <= x_.low) x_.high = x_.low + 1.0;
    if (y_.high <= y_.low) {
      const double room = std::max(std::abs(y_.low) * 0.1, 1e-12);
      y_ = log_ ? AxisRange{y_.low / 1.1, y_.high * 1.1} : AxisRange{y_.low - room, y_.high + room};
    } else if (log_) {
      const double room = std::pow(y_.high / y_.low, 0.05);
      y_ = {.low = y_.low / room, .high = y_.high * room};
    } else {
      const double room = 0.05 * (y_.high - y_.low);
      y_ = {.low = chart_.from_zero ? y_.low : y_.low - room, .high = y_.high + room};
    }
  }

  double x_at(double x) const { return left + (x - x_.low) / (x_.high - x_.low) * (right() - left); }
  double y_at(double y) const {
    const double share =
        log_ ? std::log(y / y_.low) / std::log(y_.high / y_.low) : (y - y_.low) / (y_.high - y_.low);
    return bottom() - share * (bottom() - top);
  }

  template <typename... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }

  void draw_axes() {
    const double y_ticks = std::floor(chart_.height / 48.0);
    for (const double tick : log_ ? log_ticks(y_) : linear_ticks(y_, y_ticks)) {
      const double y = y_at(tick);
      add("<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>", left, y, right(),
          y);
      add("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left - 8.0,
          y + 4.0, short_number(tick));
    }
    add("<line class=\"axis\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", left, bottom(),
        right(), bottom());
    for (const double tick : linear_ticks(x_, std::floor(chart_.width / 110.0))) {
      if (std::abs(tick - std::round(tick)) > 1e-9) continue;  // there is no half step
      const double x = x_at(tick);
      add("<line class=\"axis\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>", x, bottom(), x,
          bottom() + 4.0);
      add("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x,
          bottom() + 18.0, short_number(tick));
    }
  }

  void draw_marker(const ChartMarker& marker) {
    const double x = x_at(marker.x);
    const double y = marker.tick ? bottom() - 7.0 : top;
    add("<g class=\"marker {0}\"><title>{1}</title><line x1=\"{2:.1f}\" y1=\"{3:.1f}\" x2=\"{2:.1f}\" "
        "y2=\"{4:.1f}\"/>",
        marker.css_class, escape_html(marker.title), x, y, bottom());
    if (marker.dot) add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"/>", x, top);
    out_ += "</g>\n";
  }

  // Returns the line of a curve, in pieces where it has gaps. One point between two gaps is a line to itself,
  // which is drawn as a dot.
  std::string path_of(const ChartCurve& curve) const {
    std::string path;
    auto gap = curve.gaps.begin();
    for (std::size_t i = 0; i < curve.points.size(); ++i) {
      const ChartPoint& point = curve.points[i];
      const auto next_gap = std::upper_bound(gap, curve.gaps.end(), point.x);
      const bool begins = i == 0 || next_gap != gap;
      gap = next_gap;
      const bool ends =
          i + 1 == curve.points.size() || (gap != curve.gaps.end() && *gap < curve.points[i + 1].x);
      const std::string place = fmt::format("{:.1f} {:.1f}", x_at(point.x), y_at(point.y));
      path += (begins ? "M" : "L") + place;
      if (begins && ends) path += "L" + place;
    }
    return path;
  }

  void draw_curve(const ChartCurve& curve) {
    const std::string path = path_of(curve);
    if (path.empty()) return;
    add("<path class=\"line {}\" d=\"{}\"/>\n", curve.css_class, path);
    if (!curve.dots) return;
    for (const ChartPoint& point : curve.points) {
      add("<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>\n", curve.css_class,
          x_at(point.x), y_at(point.y));
    }
  }

  // Invisible stripes that say, under the pointer, what the curves are there: the page needs no script. Markers
  // are above them, with titles of their own; curves take no part.
  void draw_bands() {
    const double width = (right() - left) / static_cast<double>(hover_bands);
    for (std::size_t i = 0; i < hover_bands; ++i) {
      const double begin =
          x_.low + (x_.high - x_.low) * static_cast<double>(i) / static_cast<double>(hover_bands);
      const double end =
          x_.low + (x_.high - x_.low) * static_cast<double>(i + 1) / static_cast<double>(hover_bands);
      const std::string text = reading_between(begin, end);
      if (text.empty()) continue;
      add("<rect class=\"band\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
          "height=\"{:.1f}\"><title>{}</title></rect>\n",
          left + width * static_cast<double>(i), top, width, bottom() - top, text);
    }
  }

  std::string reading_between(double begin, double end) const {
    std::string text;
    const bool last_band = end >= x_.high;
    for (const ChartCurve& curve : chart_.curves) {
      const auto after = std::ranges::partition_point(curve.points, [&](const ChartPoint& point) {
        return point.x < end || (last_band && point.x <= end);
      });
      if (after == curve.points.begin()) continue;
      const ChartPoint& point = *std::prev(after);
      if (point.x < begin) continue;
      if (text.empty()) text = fmt::format("step {:.0f}", point.x);
      text += fmt::format("\n{}: {}", escape_html(curve.name), fmt::format("{:.4g}", point.y));
    }
    return text;
  }

  const Chart& chart_;
  AxisRange x_, y_;
  bool log_ = false;
  std::string out_;
};

}  // namespace

std::string render_chart(const Chart& chart) {
  return Canvas(chart).draw();
}

std::vector<ChartPoint> downsample(const std::vector<ChartPoint>& points, std::size_t limit) {
  if (points.size() <= limit || limit < 2) return points;
  const std::size_t runs = limit / 2;
  std::vector<ChartPoint> kept;
  for (std::size_t run = 0; run < runs; ++run) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(points.size() * run / runs);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>(points.size() * (run + 1) / runs);
    const auto [low, high] =
        std::minmax_element(begin, end, [](const ChartPoint& a, const ChartPoint& b) { return a.y < b.y; });
    kept.push_back(*std::min(low, high));
    if (low != high) kept.push_back(*std::max(low, high));
  }
  return kept;
}

std::vector<ChartPoint> smooth(const std::vector<ChartPoint>& points, std::size_t half_width) {
  std::vector<double> sums = {0.0};  // sums[i] = y of the first i points
  for (const ChartPoint& point : points) sums.push_back(sums.back() + point.y);
  std::vector<ChartPoint> result;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::size_t begin = i - std::min(i, half_width);
    const std::size_t end = std::min(i + std::min(i, half_width) + 1, points.size());
    result.push_back({.x = points[i].x, .y = (sums[end] - sums[begin]) / static_cast<double>(end - begin)});
  }
  return result;
}

namespace {

// Returns the distance of about `count` ticks: 1, 2 or 5 times a power of ten.
double tick_step(AxisRange range, double count) {
  const double rough = (range.high - range.low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10.0 * power;
}

// Returns the smallest distance with at most ten intervals.
std::int64_t time_step_ms(std::int64_t end_ms) {
  constexpr std::int64_t second = 1'000, minute = 60'000, hour = 3'600'000;
  for (const std::int64_t tick :
       {second / 5, second, 2 * second, 5 * second, 10 * second, 30 * second, minute, 2 * minute, 5 * minute,
        10 * minute, 30 * minute, hour, 2 * hour, 6 * hour, 12 * hour}) {
    if (end_ms / tick < 10) return tick;
  }
  constexpr std::int64_t day = 24 * hour;
  return std::max(day, end_ms / 10 / day * day);
}

}  // namespace

std::vector<double> linear_ticks(AxisRange range, double count) {
  std::vector<double> ticks;
  const double step = tick_step(range, count);
  const double tolerance = step * 1e-9;
  const double first = std::ceil((range.low - tolerance) / step);
  // Counted, because adding a step to a huge value may not change it.
  for (int i = 0; i <= count && (first + i) * step <= range.high + tolerance; ++i)
    ticks.push_back((first + i) * step);
  return ticks;
}

std::vector<double> log_ticks(AxisRange range) {
  std::vector<double> ticks;
  const double decades = std::log10(range.high / range.low);
  for (double power = std::floor(std::log10(range.low)); power <= std::log10(range.high); power += 1.0) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (decades > 3.0 && factor > 1.0) continue;
      const double tick = factor * std::pow(10.0, power);
      if (tick >= range.low * 0.999 && tick <= range.high * 1.001) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::vector<std::int64_t> time_ticks_ms(std::int64_t end_ms) {
  std::vector<std::int64_t> ticks;
  const std::int64_t step_ms = time_step_ms(end_ms);
  for (std::int64_t at_ms = 0; at_ms <= end_ms; at_ms += step_ms) ticks.push_back(at_ms);
  return ticks;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size <= 0.0) return "0";
  if (size >= 1e9) return fmt::format("{:.4g}B", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  if (size >= 1e-2) return fmt::format("{:.4g}", value);
  const double exponent = std::floor(std::log10(size * 1.0000001));
  return fmt::format("{:.3g}e{:.0f}", value / std::pow(10.0, exponent), exponent);
}

}  // namespace holdfast::report
