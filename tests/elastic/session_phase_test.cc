// Tests the phases of a session: what follows which, and how a phase ends that met a fault.
#include "runtime/elastic/session_phase.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace holdfast::test {
namespace {

// Returns what follows, for every pair that can be. In all others the program has a bug.
std::map<std::pair<SessionPhase, PhaseOutcome>, SessionPhase> transitions() {
  using enum SessionPhase;
  using enum PhaseOutcome;
  return {
      {{start, ready}, train},
      {{start, finished}, end},
      {{start, group_fails}, recover},
      {{start, rank_fails}, leave},
      {{start, run_fails}, end},

      {{train, finished}, end},
      {{train, pauses}, grow},
      {{train, lacks_memory}, shrink},
      {{train, group_fails}, recover},
      {{train, rank_fails}, leave},
      {{train, run_fails}, end},

      {{recover, ready}, train},
      {{recover, not_begun}, start},
      {{recover, joiners_come}, admit},
      {{recover, group_fails}, recover},
      {{recover, rank_fails}, leave},
      {{recover, run_fails}, end},

      {{grow, joiners_come}, admit},
      {{grow, group_fails}, recover},
      {{grow, rank_fails}, leave},
      {{grow, run_fails}, end},

      {{admit, ready}, train},
      {{admit, joiners_fail}, dismiss},
      {{admit, group_fails}, recover},
      {{admit, rank_fails}, leave},
      {{admit, run_fails}, end},

      {{dismiss, group_fails}, recover},
      {{dismiss, rank_fails}, leave},
      {{dismiss, run_fails}, end},

      {{shrink, ready}, train},
      {{shrink, group_fails}, recover},
      {{shrink, rank_fails}, leave},
      {{shrink, run_fails}, end},

      {{train, rolls_back}, roll_back},
      {{roll_back, ready}, train},
      {{roll_back, group_fails}, recover},
      {{roll_back, rank_fails}, leave},
      {{roll_back, run_fails}, end},

      {{leave, run_fails}, end},
  };
}

TEST(Session, EveryPairOfPhaseAndOutcomeHasItsNextPhaseOrNone) {
  const auto expected = transitions();
  for (std::size_t phase = 0; phase < session_phases; ++phase) {
    for (std::size_t outcome = 0; outcome < phase_outcomes; ++outcome) {
      const std::pair pair(static_cast<SessionPhase>(phase), static_cast<PhaseOutcome>(outcome));
      const auto found = expected.find(pair);
      const std::optional<SessionPhase> next =
          found == expected.end() ? std::nullopt : std::optional(found->second);
      EXPECT_EQ(next_phase(pair.first, pair.second), next) << "phase " << phase << ", outcome " << outcome;
    }
  }
}

TEST(Session, EveryPhaseCanBeReached) {
  std::set<SessionPhase> reached = {SessionPhase::start};
  for (std::size_t before = 0; before < reached.size();) {
    before = reached.size();
    for (const SessionPhase phase : std::set(reached)) {
      for (std::size_t outcome = 0; outcome < phase_outcomes; ++outcome) {
        const std::optional<SessionPhase> next = next_phase(phase, static_cast<PhaseOutcome>(outcome));
        if (next.has_value()) reached.insert(*next);
      }
    }
  }
  EXPECT_EQ(reached.size(), session_phases);
}

// Returns the facts of a rank in a run that has begun, after another rank died.
FaultFacts after_a_death() {
  return {.has_membership = true, .group_lost = true, .others_can_go_on = true, .has_device = true};
}

TEST(OutcomeOfFault, ADeathIsRecoveredFromWithMembership) {
  FaultFacts facts = after_a_death();
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::group_fails);
  facts.has_membership = false;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::run_fails);
  facts = after_a_death();
  facts.recovery_failed = true;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::run_fails);
}

TEST(OutcomeOfFault, AnErrorOnWhichAllAgreeEndsTheRun) {
  FaultFacts facts = after_a_death();
  facts.group_lost = false;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::run_fails);
  facts.device_failed = true;  // the others have the same error, which names this rank
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::run_fails);
}

TEST(OutcomeOfFault, ABrokenRankLeavesIfTheOthersCanGoOn) {
  FaultFacts facts = after_a_death();
  facts.device_failed = true;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::rank_fails);
  facts.others_can_go_on = false;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::group_fails);
  facts = after_a_death();
  facts.group_lost = false;
  facts.system_refused = true;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::rank_fails);
  facts.others_can_go_on = false;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::run_fails);
}

TEST(OutcomeOfFault, ARankThatComputesWrongNumbersLeavesIfTheOthersCanGoOn) {
  FaultFacts facts = after_a_death();
  facts.evicted = true;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::rank_fails);
  facts.others_can_go_on = false;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::group_fails);
}

TEST(OutcomeOfFault, AnUnfitRankLeavesThoughTheOthersHaveGivenTheGroupUpMeanwhile) {
  FaultFacts facts = after_a_death();
  facts.unfit = true;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::rank_fails);
  facts.others_can_go_on = false;  // the run has not begun
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::rank_fails);
  facts.group_lost = false;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::rank_fails);
  facts = after_a_death();
  facts.unfit = true;
  facts.recovery_failed = true;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::run_fails);
  facts = after_a_death();
  facts.unfit = true;
  facts.joins = true;  // what joiners lack is no fault of this rank
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::group_fails);
}

TEST(OutcomeOfFault, ARankThatHasLostItsDeviceAlwaysLeaves) {
  EXPECT_EQ(outcome_of_fault({.device_lost = true}), PhaseOutcome::rank_fails);
}

TEST(OutcomeOfFault, JoinersThatFailAreDismissed) {
  FaultFacts facts = after_a_death();
  facts.group_lost = false;
  facts.joins = true;
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::joiners_fail);
  facts.has_device = false;  // the joiner itself
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::rank_fails);
  facts.group_lost = true;  // a death meanwhile
  EXPECT_EQ(outcome_of_fault(facts), PhaseOutcome::group_fails);
}

}  // namespace
}  // namespace holdfast::test
