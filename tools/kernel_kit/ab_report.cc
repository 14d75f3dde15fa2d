#include "tools/kernel_kit/ab_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "runtime/core/median.h"
#include "runtime/report/report_chart.h"
#include "runtime/report/report_page.h"

namespace holdfast::bench::kernel_kit {
namespace {

bool same_bits(double one, double other) {
  return std::bit_cast<std::uint64_t>(one) == std::bit_cast<std::uint64_t>(other);
}

// Returns how many of the lowest and of the highest of n values lie outside an interval that has their median with 95 % at
// least: the greatest r with P(at most r - 1 of n are below the median) <= 0.025; 0: n is too small. Of many values by the
// normal distribution, because 0.5^n is none of a computer's numbers there.
std::size_t values_outside(std::size_t n) {
  constexpr std::size_t many = 1000;
  const auto count = static_cast<double>(n);
  if (n > many) return static_cast<std::size_t>(count / 2.0 - 0.98 * std::sqrt(count));
  double term = std::pow(0.5, count), sum = term;
  std::size_t r = 0;
  while (r < n / 2 && sum <= 0.025) {
    ++r;
    term *= static_cast<double>(n - r + 1) / static_cast<double>(r);
    sum += term;
  }
  return r;
}

double root_mean_square(std::span<const double> values) {
  double sum = 0.0;
  for (const double each : values) sum += each * each;
  return values.empty() ? 0.0 : std::sqrt(sum / static_cast<double>(values.size()));
}

std::string times_text(const AbTimes& times) {
  if (times.pairs == 0) return "too few steps to tell";
  const std::string interval = std::isfinite(times.high)
                                   ? fmt::format("{:.4f} to {:.4f} with 95 %", times.low, times.high)
                                   : "too few steps for an interval";
  return fmt::format("A {:.4g} ms, B {:.4g} ms a step; B takes {:.4f} of A's time ({}; {} pair{} of steps)",
                     times.a_ms, times.b_ms, times.ratio, interval, times.pairs, times.pairs == 1 ? "" : "s");
}

std::string bits_text(const AbReport& report, const AbLosses& losses) {
  if (has_same_bits(report))
    return fmt::format("the same in all {} steps, and in the state after them", report.steps.size());
  if (losses.first_difference == 0)
    return "others in the state after the last step alone: losses and norms are the same";
  if (!report.origin.has_value()) {
    return fmt::format("others from step {} on; the op was not found{}", losses.first_difference,
                       report.why_no_origin.empty() ? "" : ": " + report.why_no_origin);
  }
  const std::string seen = fmt::format("result {} of {}", report.origin->output, report.origin->where);
  if (!report.origin->is_alike)
    return fmt::format("others from step {} on, first in {}", report.origin->step, seen);
  return fmt::format("others before the ops of step {}, in what an update leaves; first seen in {}",
                     report.origin->step, seen);
}

std::string losses_text(const AbReport& report, const AbLosses& losses) {
  if (losses.first_difference == 0 || report.steps.empty()) return "no difference";
  const AbStep& last = report.steps.back();
  std::string text = fmt::format(
      "after step {} A {:.6g}, B {:.6g}; B less A in the last half {:.2e} in the mean, {:.2e} RMS; "
      "at most {:.2e}",
      last.step, last.a.loss, last.b.loss, losses.mean, losses.rms, losses.largest);
  if (losses.noise_rms.has_value())
    text += fmt::format("; A with other last bits {:.2e} RMS", *losses.noise_rms);
  return text;
}

std::string speed_clause(const AbTimes& times) {
  if (times.is_faster()) return fmt::format("takes {:.2f} % less time", 100.0 * (1.0 - times.ratio));
  if (times.is_slower()) return fmt::format("takes {:.2f} % more time", 100.0 * (times.ratio - 1.0));
  return std::isfinite(times.high) ? "takes a time that cannot be told from A's"
                                   : "was timed too shortly to tell";
}

}  // namespace

bool AbStep::has_same_bits() const {
  return same_bits(a.loss, b.loss) && same_bits(a.grad_norm, b.grad_norm);
}

AbTimes times_of(const AbReport& report) {
  std::vector<double> a, b, ratios;
  const AbStep* first = nullptr;  // of a pair
  for (const AbStep& step : report.steps) {
    if (!step.is_timed) {
      first = nullptr;
      continue;
    }
    a.push_back(static_cast<double>(step.a.duration_ns) * 1e-6);
    b.push_back(static_cast<double>(step.b.duration_ns) * 1e-6);
    if (first == nullptr) {
      first = &step;
      continue;
    }
    const auto sum_a = static_cast<double>(first->a.duration_ns + step.a.duration_ns);
    if (sum_a > 0.0) ratios.push_back(static_cast<double>(first->b.duration_ns + step.b.duration_ns) / sum_a);
    first = nullptr;
  }
  if (ratios.empty()) return {};
  AbTimes times{.a_ms = median(a),
                .b_ms = median(b),
                .ratio = median(ratios),
                .pairs = static_cast<int>(ratios.size())};
  std::ranges::sort(ratios);
  if (const std::size_t outside = values_outside(ratios.size()); outside > 0) {
    times.low = ratios[outside - 1];
    times.high = ratios[ratios.size() - outside];
  }
  return times;
}

AbLosses losses_of(const AbReport& report) {
  AbLosses losses;
  if (report.origin.has_value()) losses.first_difference = report.origin->step;
  std::vector<double> differences, noise;
  const std::size_t begin = report.steps.size() / 2;
  for (std::size_t i = 0; i < report.steps.size(); ++i) {
    const AbStep& step = report.steps[i];
    if (!step.has_same_bits() && (losses.first_difference == 0 || step.step < losses.first_difference))
      losses.first_difference = step.step;
    const double difference = step.b.loss - step.a.loss;
    if (std::isfinite(difference)) losses.largest = std::max(losses.largest, std::abs(difference));
    if (i < begin) continue;
    if (std::isfinite(difference)) differences.push_back(difference);
    if (step.noise_loss.has_value() && std::isfinite(*step.noise_loss - step.a.loss))
      noise.push_back(*step.noise_loss - step.a.loss);
  }
  for (const double each : differences) losses.mean += each / static_cast<double>(differences.size());
  losses.rms = root_mean_square(differences);
  if (!noise.empty()) losses.noise_rms = root_mean_square(noise);
  return losses;
}

bool has_same_bits(const AbReport& report) {
  return losses_of(report).first_difference == 0 && report.has_same_state;
}

std::string verdict_of(const AbReport& report) {
  if (!report.ended.empty()) return report.ended;
  const AbLosses losses = losses_of(report);
  const std::string speed = speed_clause(times_of(report));
  if (has_same_bits(report)) return fmt::format("B computes the same bits as A, and {}", speed);
  if (!losses.noise_rms.has_value())
    return fmt::format("B computes other bits, and {}; --noise tells whether its loss is another one", speed);
  // Where other last bits make no difference yet, a kernel's may all the same.
  if (!(*losses.noise_rms > 0.0))
    return fmt::format("B computes other bits, and {}; too few steps to tell whether its loss is another one",
                       speed);
  constexpr double alike = 2.0;
  const double times = losses.rms / *losses.noise_rms;
  return fmt::format(
      "B computes other bits, and {}; its loss differs from A's {} ({:.2g} times as much as with other last "
      "bits)",
      speed, times <= alike ? "as roundings make it" : "more than by roundings", times);
}

Json AbReport::json() const {
  const AbTimes times = times_of(*this);
  const AbLosses losses = losses_of(*this);
  Json curve = Json::array();
  for (const AbStep& each : steps) {
    Json step = {{"step", each.step},
                 {"loss", {each.a.loss, each.b.loss}},
                 {"grad_norm", {each.a.grad_norm, each.b.grad_norm}},
                 {"ns", {each.a.duration_ns, each.b.duration_ns}},
                 {"timed", each.is_timed},
                 {"same_bits", each.has_same_bits()}};
    if (each.noise_loss.has_value()) step["noise_loss"] = *each.noise_loss;
    curve.push_back(std::move(step));
  }
  Json document = {
      {"kernels", kernels},
      {"device", device},
      {"from", from},
      {"verdict", verdict_of(*this)},
      {"same_bits", has_same_bits(*this)},
      {"same_state", has_same_state},
      {"ms", {times.a_ms, times.b_ms}},
      {"ratio", times.ratio},
      {"pairs", times.pairs},
      {"loss_difference", {{"largest", losses.largest}, {"mean", losses.mean}, {"rms", losses.rms}}},
      {"steps", std::move(curve)}};
  if (std::isfinite(times.high)) document["ratio_95"] = {times.low, times.high};
  if (losses.first_difference > 0) document["first_difference"] = losses.first_difference;
  if (losses.noise_rms.has_value()) document["noise_rms"] = *losses.noise_rms;
  if (!ended.empty()) document["ended"] = ended;
  if (origin.has_value())
    document["origin"] = {{"step", origin->step},
                          {"op", origin->op},
                          {"where", origin->where},
                          {"output", origin->output},
                          {"alike", origin->is_alike}};
  return document;
}

std::string text_of(const AbReport& report) {
  const AbLosses losses = losses_of(report);
  std::string text =
      fmt::format("{} steps on {}, from {}\n", report.steps.size(), report.device, report.from);
  for (const std::string& each : report.kernels) text += each + "\n";
  if (report.kernels.empty()) text += "A and B have the same kernels: what differs is the noise\n";
  text += fmt::format("bits     {}\n", bits_text(report, losses));
  text += fmt::format("time     {}\n", times_text(times_of(report)));
  text += fmt::format("loss     {}\n", losses_text(report, losses));
  return text + fmt::format("verdict  {}\n", verdict_of(report));
}

namespace {

using report::ChartPoint;

std::string chart_card(const std::string& title, const std::string& remark, const std::string& legend,
                       report::Chart chart) {
  std::erase_if(chart.curves, [](const report::ChartCurve& curve) { return curve.points.empty(); });
  if (chart.curves.empty()) return "";
  constexpr std::size_t points_shown = 800;
  for (report::ChartCurve& curve : chart.curves)
    curve.points = report::downsample(curve.points, points_shown);
  return report::card(title, remark, legend, report::render_chart(chart));
}

// Returns a curve of what `value` finds in the steps, without what is not finite.
template <typename Value>
report::ChartCurve curve_of(const AbReport& report, const char* name, const char* css_class, Value value) {
  report::ChartCurve curve{.name = name, .css_class = css_class, .points = {}};
  for (const AbStep& step : report.steps) {
    const std::optional<double> y = value(step);
    if (y.has_value() && std::isfinite(*y)) curve.points.push_back({static_cast<double>(step.step), *y});
  }
  return curve;
}

}  // namespace

std::string page_of(const AbReport& report) {
  using Number = std::optional<double>;
  const AbLosses losses = losses_of(report);
  std::string inside;
  for (const std::string& each : report.kernels)
    inside += fmt::format("<p>{}</p>", report::escape_html(each));
  for (const std::string& each :
       {"bits: " + bits_text(report, losses), "time: " + times_text(times_of(report)),
        "loss: " + losses_text(report, losses)})
    inside += fmt::format("<p>{}</p>", report::escape_html(each));
  std::string body =
      report::card("Verdict", "", "", fmt::format("<p>{}</p>", report::escape_html(verdict_of(report))));
  body += report::card("A and B",
                       report::escape_html(fmt::format("{} steps on {}, from {}", report.steps.size(),
                                                       report.device, report.from)),
                       "", inside);
  const std::string both = report::legend_entry("train", "A") + report::legend_entry("held", "B");
  body += chart_card(
      "Loss", "the same samples on both sides", both,
      {.label = "loss of A and B by step",
       .curves = {curve_of(report, "A", "train", [](const AbStep& s) { return Number(s.a.loss); }),
                  curve_of(report, "B", "held", [](const AbStep& s) { return Number(s.b.loss); })}});
  body += chart_card(
      "Difference of the loss", "to A's; none where the bits are the same",
      report::legend_entry("held", "B") + report::legend_entry("other", "A with other last bits"),
      {.label = "loss of B less that of A by step",
       .curves = {
           curve_of(report, "A with other last bits", "other",
                    [](const AbStep& s) {
                      return s.noise_loss.has_value() ? Number(*s.noise_loss - s.a.loss) : Number();
                    }),
           curve_of(report, "B", "held", [](const AbStep& s) { return Number(s.b.loss - s.a.loss); })}});
  const auto milliseconds = [](const AbStep& step, std::int64_t duration_ns) {
    return step.is_timed ? Number(static_cast<double>(duration_ns) * 1e-6) : Number();
  };
  body += chart_card("Time of a step", "ms; A makes every other step first", both,
                     {.label = "milliseconds of a step of A and B",
                      .from_zero = true,
                      .curves = {curve_of(report, "A", "train",
                                          [&](const AbStep& s) { return milliseconds(s, s.a.duration_ns); }),
                                 curve_of(report, "B", "held", [&](const AbStep& s) {
                                   return milliseconds(s, s.b.duration_ns);
                                 })}});
  return report::html_page("Kernel A/B", "", body);
}

}  // namespace holdfast::bench::kernel_kit
