// The verdict on the numbers of a step by those of the steps before it: pure functions, so that all ranks, and every
// replay of the step, come to the same verdict. They add, multiply, divide and compare only, which IEEE 754
// rounds in one way: no function of the math library, which may round differently on another processor, has a
// say in what the ranks do together.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/config/config.h"
#include "runtime/integrity/numbers_history.h"
#include "runtime/run/numbers_log.h"

namespace holdfast::integrity {

struct Verdict {
  VerdictKind kind = VerdictKind::fine;
  std::uint64_t step = 0;
  bool of_norm = false;  // it is about the gradient norm, else about the loss
  // spike: robust deviations above the median; exploded: times the median; drift: rise of the loss, in nats
  double score = 0.0;
  double median = 0.0;  // spike, exploded: median of the window; drift: the least earlier median
};

// Thresholds that apply: those of the config, or of the preset where the config has 0.
struct VerdictThresholds {
  double loss_score = 0.0, norm_score = 0.0;  // robust deviations
};
VerdictThresholds verdict_thresholds(const VerdictConfig& config);

// Returns the verdict on a step that was computed and not yet committed: call it before history.add(). With
// verdict.preset = "off" only numbers that are not finite are noticed. The history must keep as many steps as
// config.window_steps says (HF_CHECK). Allocates nothing.
Verdict verdict_of(const NumbersHistory& history, const StepNumbers& numbers, const VerdictConfig& config);

// Robust deviations of loss and norm above the window: what verdict_of() compares with the thresholds. 0 while the
// window holds too few steps.
struct VerdictScores {
  double loss = 0.0, norm = 0.0;
};
VerdictScores scores_of(const NumbersHistory& history, const StepNumbers& numbers);

// Number of steps that the window must hold before spikes are noticed, and norms that exploded: a median of fewer
// says little.
std::int64_t least_steps_for_score(const NumbersHistory& history);

// Returns the norm to which a step is clipped whose action is VerdictAction::clip: the median of the window,
// or 0 if it holds nothing.
double median_norm(const NumbersHistory& history);

// Returns a clause about numbers that are not fine, such as "the loss is 9.1, 14 robust deviations above its
// median of 3.2 over the last 128 steps".
std::string description_of(const Verdict& verdict, const StepNumbers& numbers, const NumbersHistory& history);

// Robust statistics of a window of numbers: median, spread and scores. They use only arithmetic that IEEE 754
// rounds in one way, so that all ranks get the same bits.
//
// Source: the modified z-score of Iglewicz and Hoaglin (1993), with a floor under the spread, because windows
// of a training that stands still have none.

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
