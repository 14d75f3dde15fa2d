// The phases of a rank's run, and what follows which: one table, without any effect. Session carries it out
// (session.cc): it takes a phase, learns how the phase ended, and looks up the next one here.
//
//   start -> train -> end
//     a death, or another fault:          train -> recover -> train
//     joiners come:                       train -> grow -> admit -> train
//     joiners cannot take part:           admit -> dismiss -> recover -> train
//     the hosts lack memory:              train -> shrink -> train
//     a verdict takes the run back:       train -> roll_back -> train
#pragma once

#include <cstddef>
#include <optional>

namespace holdfast::elastic {

enum class SessionPhase {
  start,      // agrees with the other ranks of the start (prepare.h)
  train,      // runs a membership epoch: steps on a rank with a coordinate, a wait on a spare
  recover,    // rebuilds the group after a fault, and plans what follows (recovery_plan.h)
  grow,       // connects the group with new ranks
  admit,      // agrees with joiners; a joiner begins with it
  dismiss,    // gives up the joiners, which cannot take part
  shrink,     // takes coordinates from the ranks of one copy of the model
  roll_back,  // looks for an older state to go on from, with the same ranks
  leave,      // ends this process by SIGKILL; the others go on without it
  end,        // ends the run on all ranks
};
inline constexpr std::size_t session_phases = 10;

enum class PhaseOutcome {
  ready,         // an epoch can begin
  finished,      // the run is over, with an exit code that is no error
  pauses,        // all ranks have sealed their state, so that the run can grow
  lacks_memory,  // the run goes on with one copy of the model less
  rolls_back,    // the newest states do not count
  not_begun,     // the run had no step yet when a rank was lost
  joiners_come,  // some ranks have not agreed with the others yet
  joiners_fail,  // a step that joiners take part in failed, and nobody was lost
  group_fails,   // a rank was lost, or gave up; this one can go on with the others
  rank_fails,    // this rank cannot take part any more; the others can go on
  run_fails,     // the run cannot go on
};
inline constexpr std::size_t phase_outcomes = 11;

// Returns the phase that follows. None: a phase does not end like that.
std::optional<SessionPhase> next_phase(SessionPhase phase, PhaseOutcome outcome);

// FaultFacts holds what a rank knows when a phase has ended with an error.
struct FaultFacts {
  bool has_membership = false;    // the group can be rebuilt without a lost rank
  bool group_lost = false;        // the communicator is abandoned: a rank was lost, or gave up
  bool recovery_failed = false;   // the ranks that are left could not rebuild a group, or gave up
  bool others_can_go_on = false;  // there are others, and the run has begun
  bool evicted = false;           // this rank computes wrong numbers, and is to leave
  bool device_lost = false;       // no call into the driver of this rank's device is certain to return
  bool device_failed = false;     // the device reports an error
  bool system_refused = false;    // the system refused something, most likely a thread
  bool unfit = false;             // this rank is unfit, and others are fit (Reach::host)
  bool joins = false;             // in a step that joiners take part in
  bool has_device = false;        // false: this rank is a joiner itself, or has not begun
};
// Returns how a phase ended that returned an error.
PhaseOutcome outcome_of_fault(const FaultFacts& facts);

}  // namespace holdfast::elastic
