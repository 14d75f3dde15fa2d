// Decides what happens to a step after each attempt to compute it: pure. A step that is computed again from
// the same state has the same bits, whatever the layout, so bits that differ between two attempts are a fault
// of the hardware of the rank whose bits differ; equal bits are what data and weights say.
#pragma once

#include <cstdint>

#include "runtime/config/config.h"
#include "runtime/integrity/numbers_history.h"
#include "runtime/integrity/verdict.h"

namespace holdfast::integrity {

// AttemptRecord holds what is known of the attempts at one step. A rank differs when the bits of its own loss sums or gradient
// sums do; the numbers are sums over all ranks.
struct AttemptRecord {
  int attempts = 1;
  int differing_ranks_last = 0;  // ranks whose bits differ between the last attempt and the one before
  int differing_ranks_first =
      0;  // ranks whose bits differ between the last and the first; of 3 attempts only
};

inline constexpr int largest_attempts = 3;

// Returns what to do after an attempt, given the verdict of its numbers:
// - "watch" and "off": stop (or save_and_stop, by verdict.on_nonfinite) at numbers that are not finite, else none.
// - "guard": redo what is nonfinite, exploded, spike or dead; redo again if the two attempts differ. A third attempt
//   that equals one of the two before is right (2 of 3); if it equals neither, stop. Numbers that are
//   confirmed in this way: not finite = skip, or what verdict.on_nonfinite says when verdict.skips_max steps of the
//   window were skipped already, with stop instead of rollback when none is left; spike = as verdict.on_spike says,
//   but none instead of skip or rollback when none is left, so that the window can follow; exploded = as a spike
//   where that takes the run back or ends it, else as not finite; all else = none.
// Drift is never redone, because it is not about this step; verdict.on_drift says what follows, and none is instead of
// rollback when none is left. `rollbacks_left`: how many more are allowed at this step.
VerdictAction next_action(const NumbersHistory& history, const Verdict& of_last_attempt,
                          const AttemptRecord& record, const VerdictConfig& config,
                          std::int64_t rollbacks_left = 0);

// Returns the step that a roll-back at `step` goes to: the last but one multiple of `rollback_steps` before it. So
// the numbers that led to the spike are left behind, too, and the target depends on nothing but the step: a run
// in which saves and faults fell otherwise goes back to the same state.
std::uint64_t rollback_target(std::uint64_t step, std::int64_t rollback_steps);

// Returns the step that a roll-back for this verdict goes to: rollback_target() of the first step that is part of what
// is wrong. That is the step itself; of a drift, the first one of the median that has risen; of numbers that are not
// finite or have exploded, the first of the window that was skipped.
std::uint64_t rollback_target(const NumbersHistory& history, const Verdict& verdict,
                              const VerdictConfig& config);

// Returns the oldest step that a verdict on `step` may take the run back to; `step` if none does. A run whose steps are
// not skipped keeps no state for those that are not finite.
std::uint64_t needed_step(const NumbersHistory& history, std::uint64_t step, const VerdictConfig& config);

// Returns whether the last of three attempts equals neither of the two before: the reason of a stop that no data
// explains.
bool is_unrepeatable(const AttemptRecord& record);

// HardwareState says what becomes of a step whose numbers some hardware gave wrong.
enum class HardwareState : std::uint8_t {
  recovered,  // the numbers came out right when they were computed again
  lasts,      // they did not, so no attempt at the step can be trusted
  corrupted,  // the state that the step begins from is not what it was
};

// HardwareFault is what is known of it. `is_repeated`: it is one rank's, about whose device there are findings within
// verdict.findings_window already; `can_leave`: it is known whose it is, and the run can go on without them.
struct HardwareFault {
  HardwareState state = HardwareState::recovered;
  bool is_repeated = false, can_leave = false;
};

// Returns what to do about it: evict where the run can, and has to; else rollback if the state is corrupted, stop if
// the fault lasts. `otherwise`: what to do if there is nothing to do about hardware. Where that ends the run, nobody
// knows that the step would be another one without that rank.
VerdictAction action_on_hardware(VerdictAction otherwise, const HardwareFault& fault);

// Returns whether the action ends the run, with exit code 20.
constexpr bool ends_run(VerdictAction action) {
  return action == VerdictAction::stop || action == VerdictAction::save_and_stop;
}

// Returns whether no further step is made after the action: the update was not, or state does not count.
constexpr bool ends_steps(VerdictAction action) {
  return ends_run(action) || action == VerdictAction::rollback || action == VerdictAction::evict;
}

// Returns over how many steps roll-backs are counted (verdict.rollbacks_max).
std::uint64_t rollback_window(const VerdictConfig& config);

// Returns how many more steps may be skipped at `step` (verdict.skips_max less those of the window).
std::int64_t skips_left(const NumbersHistory& history, std::uint64_t step, const VerdictConfig& config);

}  // namespace holdfast::integrity
