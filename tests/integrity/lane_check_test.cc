// That audits come to every pair of lane and second rank, and that attribution follows from whose bits differ.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "runtime/integrity/lane_check.h"

namespace holdfast::test {
namespace {

TEST(AuditPlan, ComesToEveryPairWithinAPeriod) {
  for (const int lanes : {1, 3, 8}) {
    for (int ranks = 1; ranks <= lanes; ++ranks) {
      constexpr std::int64_t every = 5;
      std::map<std::pair<int, int>, int> seen;
      const std::int64_t period = every * lanes * std::max(1, ranks - 1);
      for (std::uint64_t step = 1; step <= static_cast<std::uint64_t>(period); ++step) {
        const std::optional<LaneAudit> audit = audit_at(step, every, lanes, ranks);
        EXPECT_EQ(audit.has_value(), step % every == 0);
        if (!audit.has_value()) continue;
        EXPECT_EQ(audit->owner, audit->lane % ranks);
        EXPECT_EQ(audit->owner == audit->auditor, ranks == 1);
        ++seen[{audit->lane, audit->auditor}];
      }
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(lanes * std::max(1, ranks - 1)));
      for (const auto& [pair, times] : seen) EXPECT_EQ(times, 1);
    }
  }
}

TEST(AuditPlan, ARetryHasAnotherAuditorWhereThereIsOne) {
  EXPECT_NE(audit_at(10, 10, 6, 3)->auditor, audit_at(10, 10, 6, 3, 1)->auditor);
  EXPECT_EQ(audit_at(10, 10, 6, 2), audit_at(10, 10, 6, 2, 1));
  EXPECT_FALSE(audit_at(10, 0, 6, 3).has_value());
}

TEST(AuditPlan, ProofTakesAnAuditOfEachRank) {
  // The pairs of four ranks with a lane each: (0, 1) at step 10, (1, 2) at 20, (2, 3) at 30, (3, 0) at 40, then (0, 2).
  const auto proved = [](std::uint64_t since, std::uint64_t step) {
    return proved_step(since, step, 10, 4, 4);
  };
  EXPECT_EQ(proved(0, 20), 0U);
  EXPECT_EQ(proved(0, 29), 0U);
  EXPECT_EQ(proved(0, 30), 10U);
  EXPECT_EQ(proved(0, 40), 20U);
  EXPECT_EQ(proved(0, 50), 20U);  // rank 1
  EXPECT_EQ(proved(10, 30), 0U);  // rank 0 has begun again since
  EXPECT_EQ(proved(10, 40), 20U);
  EXPECT_EQ(proved_step(0, 40, 0, 4, 4), 0U);
}

TEST(AuditPlan, CostsAtMostAsMuchAsIsStated) {
  for (const int waves : {1, 2, 8, 1000}) {
    const auto steps = static_cast<double>(affordable_audit_interval(waves));
    EXPECT_LE(1.0 / (steps * waves), 0.0015);
  }
}

TEST(AuditPlan, KnowsTheLastAuditOfARank) {
  // Lanes 0 to 3 of ranks 0 to 3, at steps 2, 4, 6 and 8 by the next rank, from step 10 on by the one after.
  EXPECT_EQ(last_audit_of(0, 2, 2, 4, 4), 0);
  EXPECT_EQ(last_audit_of(0, 8, 2, 4, 4), 2);
  EXPECT_EQ(last_audit_of(0, 9, 2, 4, 4), 8);
  EXPECT_EQ(last_audit_of(2, 10, 2, 4, 4), 6);
  EXPECT_EQ(last_audit_of(2, 12, 2, 4, 4), 10);
  EXPECT_EQ(last_audit_of(0, 12, 0, 4, 4), 0);
}

Digest bits(std::uint64_t value) {
  return {.high = value, .low = 7 * value};
}
AuditTrial trial(int auditor, std::uint64_t owner_bits, std::uint64_t auditor_bits) {
  return {.audit = {.lane = 0, .owner = 0, .auditor = auditor},
          .owner = bits(owner_bits),
          .auditor = bits(auditor_bits)};
}

TEST(AuditAttribution, IsOfTheRankWhoseBitsDiffer) {
  using Who = AuditAttribution::Who;
  struct Case {
    AuditTrial first, second;
    Who who;
    bool lasts;
  };
  constexpr std::uint64_t right = 1, wrong = 2, other = 3;
  const std::vector<Case> cases = {
      {trial(1, right, right), trial(1, right, right), Who::nobody, false},
      {trial(1, wrong, right), trial(1, right, right), Who::owner, false},
      {trial(1, right, wrong), trial(1, right, right), Who::auditor, false},
      {trial(1, wrong, right), trial(2, right, right), Who::owner, false},
      {trial(1, right, wrong), trial(2, right, right), Who::auditor, false},
      {trial(1, wrong, right), trial(1, other, right), Who::owner, true},
      {trial(1, right, wrong), trial(1, right, other), Who::auditor, true},
      {trial(1, wrong, right), trial(1, wrong, right), Who::unknown, true},
      {trial(1, wrong, right), trial(2, wrong, right), Who::owner, true},
      {trial(1, right, wrong), trial(2, right, other), Who::unknown, true},
  };
  for (const Case& each : cases) {
    const AuditAttribution blame = attribute(each.first, each.second);
    EXPECT_EQ(blame.who, each.who) << &each - cases.data();
    EXPECT_EQ(blame.lasts, each.lasts) << &each - cases.data();
  }
}

}  // namespace
}  // namespace holdfast::test
