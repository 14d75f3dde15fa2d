// Tests that audits come to every pair of lane and second replica, and that attribution follows from whose bits differ.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "parallel/pipeline/schedule_time.h"
#include "runtime/integrity/lane_check.h"

namespace holdfast::test {
namespace {

TEST(AuditPlan, TakesALaneOfEachReplicaAndComesToEveryPairWithinAPeriod) {
  for (const int lanes : {1, 3, 8}) {
    for (int replicas = 1; replicas <= lanes; ++replicas) {
      constexpr std::int64_t every = 5;
      const int waves = (lanes + replicas - 1) / replicas, distances = std::max(1, replicas - 1);
      std::set<std::pair<int, int>> seen;  // lane, auditor
      for (std::int64_t step = 1; step <= every * waves * distances; ++step) {
        const std::optional<LaneAudit> audit =
            audit_at(static_cast<std::uint64_t>(step), every, lanes, replicas);
        EXPECT_EQ(audit.has_value(), step % every == 0);
        if (!audit.has_value()) continue;
        EXPECT_EQ(audit->is_of_itself(), replicas == 1);
        std::set<int> auditors;
        for (int owner = 0; owner < replicas; ++owner) {
          const int lane = audit->lane_of(owner), auditor = audit->auditor_of(owner);
          EXPECT_LT(lane, lanes);
          EXPECT_EQ(lane % replicas, owner);
          EXPECT_EQ(audit->owner_for(auditor), owner);
          EXPECT_EQ(auditor == owner, replicas == 1);
          auditors.insert(auditor);
          seen.insert({lane, auditor});
        }
        EXPECT_EQ(auditors.size(), static_cast<std::size_t>(replicas));
      }
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(lanes * distances));
    }
  }
}

TEST(AuditPlan, ARetryHasOtherAuditorsWhereThereAreSome) {
  EXPECT_NE(audit_at(10, 10, 6, 3)->auditor_of(0), audit_at(10, 10, 6, 3, 1)->auditor_of(0));
  EXPECT_EQ(audit_at(10, 10, 6, 3)->lane_of(0), audit_at(10, 10, 6, 3, 1)->lane_of(0));
  EXPECT_EQ(audit_at(10, 10, 6, 2), audit_at(10, 10, 6, 2, 1));
  EXPECT_FALSE(audit_at(10, 0, 6, 3).has_value());
}

TEST(AuditPlan, OneAuditProvesAllReplicas) {
  EXPECT_EQ(proved_step(0, 9, 10), 0U);
  EXPECT_EQ(proved_step(0, 10, 10), 10U);
  EXPECT_EQ(proved_step(0, 29, 10), 20U);
  EXPECT_EQ(proved_step(20, 29, 10), 0U) << "ranks that have begun since have not been audited";
  EXPECT_EQ(proved_step(20, 30, 10), 30U);
  EXPECT_EQ(proved_step(0, 40, 0), 0U);
}

TEST(AuditPlan, CostsAtMostAsMuchAsIsStated) {
  for (const int waves : {1, 2, 8, 1000}) {
    const auto steps = static_cast<double>(affordable_audit_interval(waves));
    EXPECT_LE(2.0 / (steps * waves), 0.0015);
  }
}

TEST(AuditPlan, CostsNoMoreInAPipelineThatOneLaneFillsAndDrains) {
  const auto duration = [](const ScheduleShape& shape) {
    const std::vector<PartDurations> parts(static_cast<std::size_t>(shape.stages),
                                           {.forward = 1, .backward_input = 1, .backward_weight = 1});
    return schedule_time(make_schedule(shape), parts, 0.0).duration;
  };
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_forward_one_backward, ScheduleKind::zero_bubble}) {
    for (const int stages : {2, 4, 8, 16}) {
      for (const int waves : {1, 2, 8, 16}) {
        for (const int microbatches : {1, 4}) {
          ScheduleShape shape = {.kind = kind,
                                 .stages = stages,
                                 .microbatches_per_lane = microbatches,
                                 .waves = waves,
                                 .lanes = waves};
          const double step = duration(shape);
          const auto every = static_cast<double>(affordable_audit_interval(waves, shape));
          shape.waves = shape.lanes = 1;
          EXPECT_LE(2 * duration(shape) / (every * step), 0.0015)
              << name_of(kind) << ' ' << stages << ' ' << waves << ' ' << microbatches;
        }
      }
    }
  }
  EXPECT_EQ(affordable_audit_interval(8, {.stages = 4, .waves = 8, .lanes = 8}), 485);
  EXPECT_EQ(affordable_audit_interval(8, {.stages = 4, .waves = 1, .lanes = 1}), 167) << "lane by lane";
}

// docs/verdict.md states these numbers.
TEST(AuditPlan, PeriodCoverageAndLagAreThoseThatAreStatedWhateverTheNumberOfRanks) {
  for (const int replicas : {8, 128, 1024}) {
    const std::int64_t every = affordable_audit_interval(/*waves=*/1);
    EXPECT_EQ(every, 1334);
    const auto audited = static_cast<std::uint64_t>(every);
    std::set<int> compared;
    for (int owner = 0; owner < replicas; ++owner)
      compared.insert(audit_at(audited, every, replicas, replicas)->lane_of(owner));
    EXPECT_EQ(compared.size(), static_cast<std::size_t>(replicas));
    std::uint64_t lag = 0;
    for (std::uint64_t step = audited; step <= 3 * audited; ++step)
      lag = std::max(lag, step - proved_step(0, step, every));
    EXPECT_EQ(lag, 1333U);
  }
}

// Returns the sum over all ranks of copies of the model that have `stages` ranks each.
Digest sum_of_terms(const std::vector<AuditDigests>& digests, const LaneAudit& audit, int stages) {
  Digest sum;
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const auto rank = static_cast<int>(i);
    sum += audit_term(digests[i], audit, {.data = rank / stages, .pipeline = rank % stages});
  }
  return sum;
}

TEST(AuditTerm, IsZeroInAllWhereLanesAgreeAndNotWhereWrongOnesAddUp) {
  const LaneAudit audit = audit_at(1, 1, 2, 2).value();
  const auto lane = [](std::uint64_t number) { return Digest{.high = number, .low = 5 * number}; };
  const AuditDigests of_first = {.as_owner = lane(100), .as_auditor = lane(200)},
                     of_second = {.as_owner = lane(200), .as_auditor = lane(100)};
  EXPECT_EQ(sum_of_terms({of_first, of_second}, audit, 1), Digest{});
  EXPECT_EQ(sum_of_terms({of_first, of_first, of_second, of_second}, audit, 2), Digest{});
  for (std::uint64_t more = 1; more < 64; ++more) {
    const AuditDigests wrong = {.as_owner = lane(200 + 1), .as_auditor = lane(100 + more)};
    EXPECT_NE(sum_of_terms({of_first, wrong}, audit, 1), Digest{}) << more;
  }
  const AuditDigests larger = {.as_owner = lane(100 + 1), .as_auditor = lane(200)},
                     smaller = {.as_owner = lane(100 - 1), .as_auditor = lane(200)};
  EXPECT_NE(sum_of_terms({larger, smaller, of_second, of_second}, audit, 2), Digest{}) << "of two stages";
}

Digest bits(std::uint64_t value) {
  return {.high = value, .low = 7 * value};
}
AuditTrial trial(int auditor, std::uint64_t owner_bits, std::uint64_t auditor_bits) {
  return {.auditor = auditor, .by_owner = bits(owner_bits), .by_auditor = bits(auditor_bits)};
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
    const AuditAttribution found = attribute(each.first, each.second);
    EXPECT_EQ(found.who, each.who) << &each - cases.data();
    EXPECT_EQ(found.lasts, each.lasts) << &each - cases.data();
  }
}

}  // namespace
}  // namespace holdfast::test
