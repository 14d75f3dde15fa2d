#include "runtime/elastic/session_phase.h"

#include <array>

namespace holdfast::elastic {
std::optional<SessionPhase> next_phase(SessionPhase phase, PhaseOutcome outcome) {
  using Row = std::array<std::optional<SessionPhase>, phase_outcomes>;
  using enum SessionPhase;
  constexpr std::optional<SessionPhase> none;
  // clang-format off
  // A column for each PhaseOutcome, a row for each SessionPhase.
  static constexpr std::array<Row, session_phases> table = {{
      // ready, finished, pauses, lacks_memory, rolls_back, not_begun, joiners_come, joiners_fail, group_fails, rank_fails, run_fails
      {train, end, none, none, none, none, none, none, recover, leave, end},        // start
      {none, end, grow, shrink, roll_back, none, none, none, recover, leave, end},  // train
      {train, none, none, none, none, start, admit, none, recover, leave, end},     // recover
      {none, none, none, none, none, none, admit, none, recover, leave, end},       // grow
      {train, none, none, none, none, none, none, dismiss, recover, leave, end},    // admit
      {none, none, none, none, none, none, none, none, recover, leave, end},        // dismiss
      {train, none, none, none, none, none, none, none, recover, leave, end},       // shrink
      {train, none, none, none, none, none, none, none, recover, leave, end},       // roll_back
      {none, none, none, none, none, none, none, none, none, none, end},            // leave, in a test that survives it
      {none, none, none, none, none, none, none, none, none, none, none},           // end
  }};
  // clang-format on
  return table[static_cast<std::size_t>(phase)][static_cast<std::size_t>(outcome)];
}

PhaseOutcome outcome_of_fault(const FaultFacts& facts) {
  const bool can_recover = facts.has_membership && !facts.recovery_failed && facts.group_lost;
  // The error of a device counts once the group is lost: until then all ranks agree on it as on any other.
  const bool is_broken = facts.system_refused || facts.evicted || (can_recover && facts.device_failed);
  if (facts.device_lost || (is_broken && facts.others_can_go_on)) return PhaseOutcome::rank_fails;
  if (facts.joins && !facts.group_lost)
    return facts.has_device ? PhaseOutcome::joiners_fail : PhaseOutcome::rank_fails;
  // The others may have given the group up by now, to go on without this rank.
  const bool can_leave = !facts.group_lost || (can_recover && !facts.joins);
  if (facts.unfit && facts.has_membership && can_leave) return PhaseOutcome::rank_fails;
  return can_recover ? PhaseOutcome::group_fails : PhaseOutcome::run_fails;
}

}  // namespace holdfast::elastic
