#include "runtime/integrity/verdict_policy.h"

#include <gtest/gtest.h>

#include "tests/integrity/verdict_fixture.h"

namespace holdfast::test {
namespace {

constexpr AttemptRecord first_attempt{.attempts = 1};
constexpr AttemptRecord equal_attempts{.attempts = 2};
constexpr AttemptRecord differing_attempts{.attempts = 2, .differing_ranks_last = 1};
constexpr AttemptRecord second_confirmed{
    .attempts = 3, .differing_ranks_last = 0, .differing_ranks_first = 1};
constexpr AttemptRecord first_confirmed{.attempts = 3, .differing_ranks_last = 1, .differing_ranks_first = 0};
constexpr AttemptRecord three_results{.attempts = 3, .differing_ranks_last = 1, .differing_ranks_first = 1};

std::string action(std::string_view preset, std::string_view on_spike, VerdictKind kind,
                   const AttemptRecord& record, int skipped = 0) {
  VerdictConfig config;
  config.preset = preset;
  config.on_spike = on_spike;
  NumbersHistory history = steady_history(200);
  for (int i = 0; i < skipped; ++i) history.skip(static_cast<std::uint64_t>(190 + i));
  return std::string(name_of(next_action(history, {.kind = kind, .step = 201}, record, config)));
}

TEST(VerdictPolicy, WatchAndOffActOnlyOnNumbersThatAreNotFinite) {
  for (const char* preset : {"watch", "off"}) {
    for (const AttemptRecord& record : {first_attempt, differing_attempts}) {
      EXPECT_EQ(action(preset, "tell", VerdictKind::nonfinite, record), "stop");
      for (const VerdictKind kind :
           {VerdictKind::fine, VerdictKind::spike, VerdictKind::drift, VerdictKind::dead}) {
        EXPECT_EQ(action(preset, "tell", kind, record), "none") << name_of(kind);
      }
    }
  }
}

TEST(VerdictPolicy, GuardComputesAgainWhatIsInDoubt) {
  EXPECT_EQ(action("guard", "tell", VerdictKind::fine, first_attempt), "none");
  EXPECT_EQ(action("guard", "tell", VerdictKind::drift, first_attempt), "none");
  for (const VerdictKind kind : {VerdictKind::nonfinite, VerdictKind::spike, VerdictKind::dead}) {
    for (const char* on_spike : {"tell", "clip", "skip"}) {
      EXPECT_EQ(action("guard", on_spike, kind, first_attempt, 3), "redo") << name_of(kind);
    }
  }
}

// A second attempt with fine numbers proves nothing by itself: one of the two is wrong.
TEST(VerdictPolicy, DifferingBitsNeedAThirdAttempt) {
  for (const VerdictKind kind :
       {VerdictKind::fine, VerdictKind::nonfinite, VerdictKind::spike, VerdictKind::drift}) {
    EXPECT_EQ(action("guard", "skip", kind, differing_attempts), "redo") << name_of(kind);
    EXPECT_EQ(action("guard", "skip", kind, three_results), "stop") << name_of(kind);
  }
  EXPECT_TRUE(is_unrepeatable(three_results));
  EXPECT_FALSE(is_unrepeatable(first_confirmed));
  EXPECT_FALSE(is_unrepeatable(second_confirmed));
  EXPECT_FALSE(is_unrepeatable(differing_attempts));
}

TEST(VerdictPolicy, ConfirmedNumbersAreWhatDataAndWeightsSay) {
  for (const AttemptRecord& record : {equal_attempts, first_confirmed, second_confirmed}) {
    EXPECT_EQ(action("guard", "tell", VerdictKind::fine, record), "none");
    EXPECT_EQ(action("guard", "tell", VerdictKind::drift, record), "none");
    EXPECT_EQ(action("guard", "skip", VerdictKind::dead, record), "none");
    EXPECT_EQ(action("guard", "tell", VerdictKind::nonfinite, record), "skip");
    EXPECT_EQ(action("guard", "tell", VerdictKind::spike, record), "none");
    EXPECT_EQ(action("guard", "clip", VerdictKind::spike, record), "clip");
    EXPECT_EQ(action("guard", "skip", VerdictKind::spike, record), "skip");
  }
}

// Where no skip is left, a spike is committed, so that the window follows; numbers that are not finite never
// are.
TEST(VerdictPolicy, SkipsAreLimited) {
  EXPECT_EQ(action("guard", "tell", VerdictKind::nonfinite, equal_attempts, 2), "skip");
  EXPECT_EQ(action("guard", "tell", VerdictKind::nonfinite, equal_attempts, 3), "stop");
  EXPECT_EQ(action("guard", "skip", VerdictKind::spike, equal_attempts, 2), "skip");
  EXPECT_EQ(action("guard", "skip", VerdictKind::spike, equal_attempts, 3), "none");
}

TEST(VerdictPolicy, SkipsLeaveTheWindow) {
  VerdictConfig config;
  NumbersHistory history;
  EXPECT_EQ(skips_left(history, 1, config), 3);
  for (const std::uint64_t step : {10u, 20u, 100u}) history.skip(step);
  EXPECT_EQ(skips_left(history, 101, config), 0);
  EXPECT_EQ(skips_left(history, 138, config), 0);  // 138 - 128 = 10
  EXPECT_EQ(skips_left(history, 139, config), 1);
  EXPECT_EQ(skips_left(history, 1000, config), 3);
  config.skips_max = 0;
  EXPECT_EQ(skips_left(history, 1000, config), 0);
}

TEST(VerdictPolicy, ASpikeRollsBackWhileThatIsAllowed) {
  const VerdictConfig config{.on_spike = "rollback"};
  const Verdict spike{.kind = VerdictKind::spike, .step = 41};
  EXPECT_EQ(next_action({}, spike, {}, config, 1), VerdictAction::redo);
  EXPECT_EQ(next_action({}, spike, equal_attempts, config, 1), VerdictAction::rollback);
  EXPECT_EQ(next_action({}, spike, equal_attempts, config, 0), VerdictAction::none);
  const Verdict nonfinite{.kind = VerdictKind::nonfinite, .step = 41};
  EXPECT_EQ(next_action({}, nonfinite, equal_attempts, config, 1), VerdictAction::skip);
}

// An update that has exploded is never applied: it is skipped as long as skips are left, unless on_spike says more.
TEST(VerdictPolicy, WhatHasExplodedIsNotApplied) {
  for (const char* on_spike : {"tell", "clip", "skip"}) {
    EXPECT_EQ(action("guard", on_spike, VerdictKind::exploded, first_attempt), "redo");
    EXPECT_EQ(action("guard", on_spike, VerdictKind::exploded, equal_attempts, 2), "skip") << on_spike;
    EXPECT_EQ(action("guard", on_spike, VerdictKind::exploded, equal_attempts, 3), "stop") << on_spike;
  }
  EXPECT_EQ(action("guard", "stop", VerdictKind::exploded, equal_attempts), "stop");
  EXPECT_EQ(action("guard", "save_and_stop", VerdictKind::exploded, equal_attempts), "save_and_stop");
  EXPECT_EQ(action("watch", "tell", VerdictKind::exploded, first_attempt), "none");
  const Verdict exploded{.kind = VerdictKind::exploded, .step = 41};
  EXPECT_EQ(next_action({}, exploded, equal_attempts, {.on_spike = "rollback"}, 1), VerdictAction::rollback);
  EXPECT_EQ(next_action({}, exploded, equal_attempts, {.on_spike = "rollback"}, 0), VerdictAction::skip);
}

TEST(VerdictPolicy, NumbersThatStayBadRollBackWhileThatIsAllowed) {
  NumbersHistory history = steady_history(200);
  for (const std::uint64_t step : {201u, 202u, 203u}) history.skip(step);
  for (const VerdictKind kind : {VerdictKind::nonfinite, VerdictKind::exploded}) {
    const Verdict bad{.kind = kind, .step = 204};
    EXPECT_EQ(next_action(history, bad, equal_attempts, {}, 1), VerdictAction::rollback);
    EXPECT_EQ(next_action(history, bad, equal_attempts, {}, 0), VerdictAction::stop);
    for (const auto& [wanted, expected] :
         {std::pair("stop", VerdictAction::stop), std::pair("save_and_stop", VerdictAction::save_and_stop)}) {
      EXPECT_EQ(next_action(history, bad, equal_attempts, {.on_nonfinite = wanted}, 1), expected);
    }
  }
  const Verdict nonfinite{.kind = VerdictKind::nonfinite, .step = 204};
  for (const char* preset : {"watch", "off"}) {
    EXPECT_EQ(next_action(history, nonfinite, first_attempt, {.preset = preset}, 1), VerdictAction::stop);
    EXPECT_EQ(next_action(history, nonfinite, first_attempt,
                          {.preset = preset, .on_nonfinite = "save_and_stop"}, 1),
              VerdictAction::save_and_stop);
  }
}

TEST(VerdictPolicy, ASpikeOrADriftMayEndTheRun) {
  EXPECT_EQ(action("guard", "stop", VerdictKind::spike, first_attempt), "redo");
  EXPECT_EQ(action("guard", "stop", VerdictKind::spike, equal_attempts), "stop");
  EXPECT_EQ(action("guard", "save_and_stop", VerdictKind::spike, second_confirmed), "save_and_stop");
  const Verdict drift{.kind = VerdictKind::drift, .step = 192};
  for (const AttemptRecord& record : {first_attempt, equal_attempts}) {
    const auto act = [&](const char* on_drift, int rollbacks_left) {
      return next_action({}, drift, record, {.on_drift = on_drift}, rollbacks_left);
    };
    EXPECT_EQ(act("tell", 1), VerdictAction::none);
    EXPECT_EQ(act("rollback", 1), VerdictAction::rollback);
    EXPECT_EQ(act("rollback", 0), VerdictAction::none) << "the run goes on, as it would without the key";
    EXPECT_EQ(act("stop", 1), VerdictAction::stop);
    EXPECT_EQ(act("save_and_stop", 1), VerdictAction::save_and_stop);
  }
}

TEST(VerdictPolicy, ARollbackGoesToBeforeTheFirstStepThatIsWrong) {
  VerdictConfig config{.rollback_steps = 10};
  NumbersHistory history = steady_history(300);
  const auto target = [&](VerdictKind kind, std::uint64_t step) {
    return rollback_target(history, {.kind = kind, .step = step}, config);
  };
  EXPECT_EQ(target(VerdictKind::spike, 301), 290U);
  EXPECT_EQ(target(VerdictKind::nonfinite, 301), 290U) << "nothing was skipped";
  EXPECT_EQ(target(VerdictKind::drift, 320), 270U) << "the first of 32 steps is 289";
  for (const std::uint64_t step : {100u, 221u, 290u, 305u}) history.skip(step);
  EXPECT_EQ(target(VerdictKind::nonfinite, 311), 210U) << "step 100 has left the window";
  EXPECT_EQ(target(VerdictKind::exploded, 311), 210U);
  EXPECT_EQ(target(VerdictKind::spike, 311), 300U);
  config.drift_steps = 400;
  EXPECT_EQ(target(VerdictKind::drift, 320), 0U);
}

TEST(VerdictPolicy, AStateIsNeededForWhatMayGoBack) {
  NumbersHistory history = steady_history(300);
  const VerdictConfig standard{.rollback_steps = 10};
  EXPECT_EQ(needed_step(history, 301, standard), 301U);
  EXPECT_EQ(needed_step(history, 301, {.on_spike = "rollback", .rollback_steps = 10}), 290U);
  EXPECT_EQ(needed_step(history, 301, {.on_drift = "rollback", .rollback_steps = 10}), 250U);
  history.skip(283);
  EXPECT_EQ(needed_step(history, 301, standard), 270U);
  EXPECT_EQ(needed_step(history, 301, {.on_nonfinite = "stop", .rollback_steps = 10}), 301U);
  EXPECT_EQ(needed_step(history, 301, {.preset = "watch", .rollback_steps = 10}), 301U);
}

TEST(VerdictPolicy, ARollbackGoesToTheLastButOneMultiple) {
  EXPECT_EQ(rollback_target(1, 10), 0U);
  EXPECT_EQ(rollback_target(20, 10), 0U);
  EXPECT_EQ(rollback_target(21, 10), 10U);
  EXPECT_EQ(rollback_target(30, 10), 10U);
  EXPECT_EQ(rollback_target(31, 10), 20U);
  EXPECT_EQ(rollback_target(7, 1), 5U);
}

TEST(VerdictPolicy, ActionsHaveNames) {
  EXPECT_EQ(name_of(VerdictAction::none), "none");
  EXPECT_EQ(name_of(VerdictAction::redo), "redo");
  EXPECT_EQ(name_of(VerdictAction::clip), "clip");
  EXPECT_EQ(name_of(VerdictAction::skip), "skip");
  EXPECT_EQ(name_of(VerdictAction::stop), "stop");
  EXPECT_EQ(name_of(VerdictAction::rollback), "rollback");
  EXPECT_EQ(name_of(VerdictAction::evict), "evict");
  EXPECT_EQ(name_of(VerdictAction::save_and_stop), "save_and_stop");
  EXPECT_EQ(name_of(VerdictKind::exploded), "exploded");
  EXPECT_EQ(name_of(VerdictKind::corruption), "corruption");
  EXPECT_EQ(name_of(VerdictSubject::grad_norm), "grad_norm");
  EXPECT_EQ(name_of(VerdictSubject::state), "state");
  EXPECT_EQ(name_of(VerdictSubject::update), "update");
  EXPECT_EQ(name_of(VerdictSubject::links), "links");
}

TEST(VerdictPolicy, HardwareLeavesWhereItHasToAndCan) {
  using enum VerdictAction;
  using enum HardwareState;
  struct Case {
    VerdictAction otherwise;
    HardwareState state;
    bool is_repeated;
    VerdictAction stays, leaves;
  };
  for (const Case& each :
       {Case{none, recovered, false, none, none}, Case{skip, recovered, false, skip, skip},
        Case{none, recovered, true, none, evict}, Case{skip, recovered, true, skip, evict},
        Case{rollback, recovered, true, rollback, evict}, Case{stop, recovered, true, stop, stop},
        Case{save_and_stop, recovered, true, save_and_stop, save_and_stop},
        Case{none, lasts, false, stop, evict}, Case{none, lasts, true, stop, evict},
        Case{none, corrupted, false, rollback, evict}, Case{none, corrupted, true, rollback, evict}}) {
    HardwareFault fault{.state = each.state, .is_repeated = each.is_repeated};
    EXPECT_EQ(action_on_hardware(each.otherwise, fault), each.stays);
    fault.can_leave = true;
    EXPECT_EQ(action_on_hardware(each.otherwise, fault), each.leaves);
  }
  EXPECT_FALSE(ends_steps(none) || ends_steps(skip) || ends_steps(clip) || ends_steps(redo));
  EXPECT_TRUE(ends_steps(stop) && ends_steps(save_and_stop) && ends_steps(rollback) && ends_steps(evict));
  EXPECT_TRUE(ends_run(stop) && ends_run(save_and_stop) && !ends_run(rollback));
}

}  // namespace
}  // namespace holdfast::test
