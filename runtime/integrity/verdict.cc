#include "runtime/integrity/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include "runtime/core/check.h"
#include "runtime/core/median.h"

namespace holdfast::integrity {
namespace {

// Thresholds of the presets and floors of the scores; docs/verdict.md says what they were derived from, and
// tools/verdict_thresholds has the same numbers.
constexpr VerdictThresholds preset_thresholds = {.loss_score = 8.0, .norm_score = 10.0};
constexpr std::int64_t least_steps = 32;
constexpr double loss_floor = 0.01;     // of the median
constexpr double log_norm_floor = 0.2;  // of the logarithm: a fifth, as a factor
constexpr double usual_loss = 1.0;      // nats; a smaller median counts as this for losses that exploded
constexpr double norms_vary = 10.0;     // so many times more than losses, from one batch to the next

using Scratch = std::array<double, NumbersHistory::capacity>;

bool is_zero(double value) {
  return std::fpclassify(value) == FP_ZERO;
}

// Fills the scratch with `count` values, of the steps from `age` on to older ones.
template <typename Value>
std::span<double> values_of(Scratch& scratch, const NumbersHistory& history, std::int64_t age,
                            std::int64_t count, Value value) {
  for (std::int64_t i = 0; i < count; ++i) {
    scratch[static_cast<std::size_t>(i)] = value(history.newest(age + i));
  }
  return std::span(scratch).first(static_cast<std::size_t>(count));
}

double loss_of(const CommittedNumbers& numbers) {
  return numbers.loss;
}

double log_norm_of(const CommittedNumbers& numbers) {
  return plain_log(numbers.grad_norm);
}

struct Centres {
  RobustCentre loss, log_norm;
};

Centres centres_of(const NumbersHistory& history) {
  Scratch scratch;
  return {.loss = take_centre(values_of(scratch, history, 0, history.size(), loss_of)),
          .log_norm = take_centre(values_of(scratch, history, 0, history.size(), log_norm_of))};
}

VerdictScores scores_above(const Centres& centres, const StepNumbers& numbers) {
  return {.loss = robust_score(numbers.loss, centres.loss, loss_floor * std::abs(centres.loss.median)),
          .norm = robust_score(plain_log(numbers.grad_norm), centres.log_norm, log_norm_floor)};
}

Verdict check_spike(const NumbersHistory& history, const StepNumbers& numbers, const VerdictConfig& config) {
  if (history.size() < least_steps_for_score(history)) return {};
  const VerdictThresholds limits = verdict_thresholds(config);
  const Centres centres = centres_of(history);
  const VerdictScores scores = scores_above(centres, numbers);
  if (scores.loss > limits.loss_score) {
    return {.kind = VerdictKind::spike, .score = scores.loss, .median = centres.loss.median};
  }
  if (scores.norm > limits.norm_score) {
    return {
        .kind = VerdictKind::spike, .of_norm = true, .score = scores.norm, .median = median_norm(history)};
  }
  return {};
}

// Losses are compared from the second step on: the first ones are the largest of a healthy run. A norm that is many
// times the median counts only where it is a spike among the norms of this run, too.
Verdict check_explosion(const NumbersHistory& history, const StepNumbers& numbers,
                        const VerdictConfig& config, const Verdict& spike) {
  if (config.explosion_factor <= 0.0 || history.size() == 0) return {};
  Scratch scratch;
  const double loss = take_median(values_of(scratch, history, 0, history.size(), loss_of));
  const double loss_times = numbers.loss / std::max(loss, usual_loss);
  if (loss_times > config.explosion_factor)
    return {.kind = VerdictKind::exploded, .score = loss_times, .median = loss};
  const double norm = median_norm(history);
  if (spike.kind != VerdictKind::spike || norm <= 0.0) return {};
  const double norm_times = numbers.grad_norm / norm;
  if (norm_times <= norms_vary * config.explosion_factor) return {};
  return {.kind = VerdictKind::exploded, .of_norm = true, .score = norm_times, .median = norm};
}

// The median of the newest losses, the step's own among them, is compared with the medians of as many before
// them, and so on as far as the window reaches. Only every drift_steps-th step is checked: a drift is told so
// often while it lasts, and not at every step.
Verdict check_drift(const NumbersHistory& history, const StepNumbers& numbers, const VerdictConfig& config) {
  const std::int64_t steps = config.drift_steps;
  if (steps == 0 || numbers.step % static_cast<std::uint64_t>(steps) != 0) return {};
  if (history.size() + 1 < 2 * steps) return {};
  Scratch scratch;
  values_of(scratch, history, 0, steps - 1, loss_of);
  scratch[static_cast<std::size_t>(steps - 1)] = numbers.loss;
  const double newest = take_median(std::span(scratch).first(static_cast<std::size_t>(steps)));
  double least = std::numeric_limits<double>::max();
  for (std::int64_t age = steps - 1; age + steps <= history.size(); age += steps) {
    least = std::min(least, take_median(values_of(scratch, history, age, steps, loss_of)));
  }
  if (newest - least <= config.drift_rise) return {};
  return {.kind = VerdictKind::drift, .score = newest - least, .median = least};
}

// A norm that was 0 at the step before, too, was told then.
bool is_dead(const NumbersHistory& history, const StepNumbers& numbers) {
  if (!is_zero(numbers.grad_norm) || is_zero(numbers.loss)) return false;
  return history.size() == 0 || !is_zero(history.newest(0).grad_norm);
}

Verdict kind_of(const NumbersHistory& history, const StepNumbers& numbers, const VerdictConfig& config) {
  const bool finite_loss = std::isfinite(numbers.loss);
  if (!finite_loss || !std::isfinite(numbers.grad_norm)) {
    return {.kind = VerdictKind::nonfinite, .of_norm = finite_loss};
  }
  if (config.preset == "off" || numbers.counted_targets == 0) return {};
  HF_CHECK(history.window_steps() == config.window_steps);
  if (is_dead(history, numbers)) return {.kind = VerdictKind::dead, .of_norm = true};
  const Verdict spike = check_spike(history, numbers, config);
  if (const Verdict exploded = check_explosion(history, numbers, config, spike);
      exploded.kind != VerdictKind::fine)
    return exploded;
  return spike.kind == VerdictKind::fine ? check_drift(history, numbers, config) : spike;
}

}  // namespace

VerdictThresholds verdict_thresholds(const VerdictConfig& config) {
  return {.loss_score = config.loss_score > 0.0 ? config.loss_score : preset_thresholds.loss_score,
          .norm_score = config.norm_score > 0.0 ? config.norm_score : preset_thresholds.norm_score};
}

Verdict verdict_of(const NumbersHistory& history, const StepNumbers& numbers, const VerdictConfig& config) {
  Verdict verdict = kind_of(history, numbers, config);
  verdict.step = numbers.step;
  return verdict;
}

VerdictScores scores_of(const NumbersHistory& history, const StepNumbers& numbers) {
  if (history.size() < least_steps_for_score(history)) return {};
  return scores_above(centres_of(history), numbers);
}

std::int64_t least_steps_for_score(const NumbersHistory& history) {
  return std::min(least_steps, history.window_steps());
}

double median_norm(const NumbersHistory& history) {
  if (history.size() == 0) return 0.0;
  Scratch scratch;
  const auto norm_of = [](const CommittedNumbers& numbers) { return numbers.grad_norm; };
  return take_median(values_of(scratch, history, 0, history.size(), norm_of));
}

std::string description_of(const Verdict& verdict, const StepNumbers& numbers,
                           const NumbersHistory& history) {
  const char* name = verdict.of_norm ? "gradient norm" : "loss";
  const double value = verdict.of_norm ? numbers.grad_norm : numbers.loss;
  switch (verdict.kind) {
    case VerdictKind::fine:
      return "the numbers are fine";
    case VerdictKind::nonfinite:
      return fmt::format("the loss is {} and the gradient norm {}", numbers.loss, numbers.grad_norm);
    case VerdictKind::spike:
      return fmt::format(
          "the {} is {:.4g}, {:.3g} robust deviations above its median of {:.4g} over the last {} steps",
          name, value, verdict.score, verdict.median, history.size());
    case VerdictKind::exploded:
      return fmt::format("the {} is {:.4g}, {:.3g} times the usual one (median of the last {} steps: {:.4g})",
                         name, value, verdict.score, history.size(), verdict.median);
    case VerdictKind::drift:
      return fmt::format(
          "the loss has risen by {:.3g} from {:.4g}, the least that it was over the last {} steps",
          verdict.score, verdict.median, history.size());
    case VerdictKind::dead:
      return fmt::format("the gradient norm is 0 at a loss of {:.4g}", numbers.loss);
    case VerdictKind::corruption:
      break;
  }
  return {};
}

RobustCentre take_centre(std::span<double> values) {
  constexpr double normal_deviations = 1.4826;  // of a median absolute deviation
  const double median = take_median(values);
  for (double& value : values) value = std::abs(value - median);
  return {.median = median, .deviation = normal_deviations * take_median(values)};
}

double robust_score(double value, const RobustCentre& centre, double floor) {
  const double scale = std::max(centre.deviation + floor, std::numeric_limits<double>::min());
  return std::min((value - centre.median) / scale, std::numeric_limits<double>::max());
}

double plain_log(double value) {
  constexpr int exponent_bits = 52, bias = 1023;
  constexpr std::uint64_t mantissa = (std::uint64_t{1} << exponent_bits) - 1;
  constexpr double log_2 = 0.69314718055994530942;
  const double usable =
      value > std::numeric_limits<double>::min() ? value : std::numeric_limits<double>::min();
  const auto bits = std::bit_cast<std::uint64_t>(usable);
  auto exponent = static_cast<int>(bits >> exponent_bits) - bias;
  double fraction = std::bit_cast<double>((bits & mantissa) | (std::uint64_t{bias} << exponent_bits));
  if (fraction > 1.4142135623730951) {
    fraction *= 0.5;
    ++exponent;
  }
  // log(fraction) = 2 artanh(ratio), |ratio| < 0.172: nine terms leave less than 1e-14.
  const double ratio = (fraction - 1.0) / (fraction + 1.0);
  const double square = ratio * ratio;
  double sum = 0.0;
  for (int power = 17; power >= 1; power -= 2) sum = sum * square + 1.0 / power;
  return exponent * log_2 + 2.0 * ratio * sum;
}

}  // namespace holdfast::integrity
