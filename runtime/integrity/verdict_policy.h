// Decides what happens to a step after each attempt to compute it: pure. A step that is computed again from
// the same state has the same bits, whatever the layout, so bits that differ between two attempts are a fault
// of the hardware of the rank whose bits differ; equal bits are what data and weights say.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/config/config.h"
#include "runtime/integrity/numbers_history.h"
#include "runtime/integrity/verdict.h"

namespace holdfast::integrity {

enum class VerdictAction : std::uint8_t {
  commit,  // make the update
  redo,    // compute the step again from the same state and data, without an update
  clip,    // make the update with gradients scaled down to median_norm()
  skip,    // the step counts, its update is not made: NumbersHistory::skip()
  stop,    // end the run, exit code 20
  // Go back to rollback_target(), and on from there with the data that comes after this step.
  rollback,
};

// Returns "commit", "redo", "clip", "skip", "stop" or "rollback", as in the event log.
std::string_view name_of(VerdictAction action);

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
// - "watch" and "off": stop at numbers that are not finite, else commit.
// - "guard": redo what is nonfinite, spike or dead; redo again if the two attempts differ. A third attempt
//   that equals one of the two before is right (2 of 3); if it equals neither, stop. Numbers that are
//   confirmed in this way: not finite = skip, or stop when verdict.skips_max steps of the window were skipped
//   already; spike = as verdict.on_spike says, but commit instead of skip or rollback when none is left, so that
//   the window can follow; all else = commit.
// Drift is never redone: it is not about this step. `rollbacks_left`: how many more are allowed at this step.
VerdictAction next_action(const NumbersHistory& history, const Verdict& of_last_attempt,
                          const AttemptRecord& record, const VerdictConfig& config,
                          std::int64_t rollbacks_left = 0);

// Returns the step that a roll-back at `step` goes to: the last but one multiple of `rollback_steps` before it. So
// the numbers that led to the spike are left behind, too, and the target depends on nothing but the step: a run
// in which saves and faults fell otherwise goes back to the same state.
std::uint64_t rollback_target(std::uint64_t step, std::int64_t rollback_steps);

// Returns whether the last of three attempts equals neither of the two before: the reason of a stop that no data
// explains.
bool is_unrepeatable(const AttemptRecord& record);

// Returns how many more steps may be skipped at `step` (verdict.skips_max less those of the window).
std::int64_t skips_left(const NumbersHistory& history, std::uint64_t step, const VerdictConfig& config);

}  // namespace holdfast::integrity
