// Judges the numbers of a step by those of the steps before it: pure functions, so that all ranks, and every
// replay of the step, come to the same verdict. They add, multiply, divide and compare only, which IEEE 754
// rounds in one way: no function of the math library, which may round differently on another processor, has a
// say in what the ranks do together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/config/config.h"
#include "runtime/integrity/numbers_history.h"
#include "runtime/integrity/step_numbers.h"

namespace holdfast::integrity {

enum class VerdictKind : std::uint8_t {
  fine,
  nonfinite,  // loss or norm is NaN or infinite
  spike,      // loss or norm is far above the window
  drift,      // the loss has risen over many steps; nothing is wrong with this step in particular
  dead,       // the norm is exactly 0 although targets count and the loss is not 0
};

struct Verdict {
  VerdictKind kind = VerdictKind::fine;
  std::uint64_t step = 0;
  bool of_norm = false;  // it is about the gradient norm, else about the loss
  double score = 0.0;    // spike: robust deviations above the median; drift: rise of the loss, in nats
  double median = 0.0;   // spike: median of the window; drift: the least earlier median
};

// Returns "fine", "nonfinite", "spike", "drift" or "dead", as in the event log.
std::string_view name_of(VerdictKind kind);

// Thresholds that apply: those of the config, or of the preset where the config has 0.
struct VerdictThresholds {
  double loss_score = 0.0, norm_score = 0.0;  // robust deviations
};
VerdictThresholds verdict_thresholds(const VerdictConfig& config);

// Judges a step that was computed and not yet committed: call it before history.add(). With verdict.preset =
// "off" only numbers that are not finite are noticed. The history must keep as many steps as
// config.window_steps says (HF_CHECK). Allocates nothing.
Verdict judge(const NumbersHistory& history, const StepNumbers& numbers, const VerdictConfig& config);

// Robust deviations of loss and norm above the window: what judge() compares with the thresholds. 0 while the
// window holds too few steps.
struct VerdictScores {
  double loss = 0.0, norm = 0.0;
};
VerdictScores scores_of(const NumbersHistory& history, const StepNumbers& numbers);

// Number of steps that the window must hold before spikes are noticed: a median of fewer says little.
std::int64_t least_steps_for_score(const NumbersHistory& history);

// Returns the norm to which a step is clipped whose action is VerdictAction::clip: the median of the window,
// or 0 if it holds nothing.
double median_norm(const NumbersHistory& history);

// Returns a clause about numbers that are not fine, such as "the loss is 9.1, 14 robust deviations above its
// median of 3.2 over the last 128 steps".
std::string description_of(const Verdict& verdict, const StepNumbers& numbers, const NumbersHistory& history);

}  // namespace holdfast::integrity
