// Tests that each check attributes what ranks have found to the right one of them, without a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/integrity/lane_check.h"
#include "runtime/integrity/link_check.h"
#include "runtime/integrity/numbers_check.h"
#include "runtime/integrity/product_check.h"
#include "runtime/integrity/state_check.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// One rank for each copy of the model, on hosts h0, h1 ...
template <typename Found>
CheckRecords<Found> records_of(int ranks, std::uint64_t verified_step) {
  CheckRecords<Found> records;
  for (int rank = 0; rank < ranks; ++rank) {
    CheckRecord<Found>& record = records.emplace_back();
    record.host = "h" + std::to_string(rank);
    record.rank = record.data = rank;
    record.verified_step = verified_step + static_cast<std::uint64_t>(rank);
  }
  return records;
}

std::vector<int> leaving(const Finding& finding) {
  std::vector<int> ranks;
  for (const Suspect& suspect : finding.suspects)
    if (suspect.may_leave) ranks.push_back(suspect.index);
  return ranks;
}

// Records of one rank for each replica that has computed its own lane and that of another one right, twice.
LaneRecords right_lanes(int replicas, const std::array<LaneAudit, 2>& audits) {
  LaneRecords records = records_of<LaneTrials>(replicas, 4);
  for (CheckRecord<LaneTrials>& record : records) {
    for (std::size_t i = 0; i < audits.size(); ++i) {
      record.found.as_owner[i] = to_hex(digest_of("lane " + std::to_string(record.data)));
      record.found.as_auditor[i] =
          to_hex(digest_of("lane " + std::to_string(audits[i].owner_for(record.data))));
    }
  }
  return records;
}
std::array<LaneAudit, 2> two_trials(int replicas) {
  return {audit_at(1, 1, replicas, replicas).value(), audit_at(1, 1, replicas, replicas, 1).value()};
}

TEST(LaneAttribution, IsOfTheReplicaThatExplainsAllThatDiffers) {
  const std::string wrong = to_hex(digest_of("wrong")), other = to_hex(digest_of("other"));
  const auto audits = two_trials(4);
  const LaneRecords right = right_lanes(4, audits);
  for (int replica = 0; replica < 4; ++replica) {
    const auto index = static_cast<std::size_t>(replica);
    LaneRecords once = right;
    once[index].found.as_owner[0] = wrong;
    EXPECT_THAT(attribute(once, audits, /*lasts=*/false).ranks, ElementsAre(replica)) << "as an owner";
    once = right;
    once[index].found.as_auditor[0] = wrong;
    EXPECT_THAT(attribute(once, audits, false).ranks, ElementsAre(replica)) << "as an auditor";
    LaneRecords always = right;
    always[index].found.as_owner = {wrong, wrong};
    always[index].found.as_auditor = {wrong, other};
    const LaneSuspects suspects = attribute(always, audits, true);
    EXPECT_THAT(suspects.ranks, ElementsAre(replica)) << "for good";
    EXPECT_THAT(suspects.replicas, ElementsAre(replica));
    EXPECT_TRUE(suspects.owner == replica || suspects.auditor == replica);
  }
}

TEST(LaneAttribution, IsUnknownWhereTwoReplicasDifferForGood) {
  const std::string wrong = to_hex(digest_of("wrong"));
  const auto audits = two_trials(2);
  LaneRecords records = right_lanes(2, audits);
  records[1].found = {.as_owner = {wrong, wrong}, .as_auditor = {wrong, wrong}};
  const LaneSuspects suspects = attribute(records, audits, true);
  EXPECT_THAT(suspects.ranks, IsEmpty());
  EXPECT_THAT(suspects.replicas, ElementsAre(0, 1));
}

TEST(LaneAttribution, IsUnknownWhereTwoOfManyAreWrong) {
  const std::string wrong = to_hex(digest_of("wrong"));
  const auto audits = two_trials(4);
  const LaneRecords right = right_lanes(4, audits);
  LaneRecords records = right;
  records[0].found.as_owner[0] = records[2].found.as_owner[0] = wrong;
  EXPECT_THAT(attribute(records, audits, false).ranks, IsEmpty()) << "both are named";
  records = right;
  records[0].found.as_owner[0] = records[3].found.as_auditor[1] = wrong;
  const LaneSuspects suspects = attribute(records, audits, true);
  EXPECT_THAT(suspects.ranks, IsEmpty())
      << "the one that is named took no part in a lane of replicas 1 and 3";
  EXPECT_THAT(suspects.replicas, ElementsAre(0, 1, 3));
  EXPECT_EQ(suspects.lane, 0) << "which differed in the first trial";
}

TEST(LaneAttribution, IsOfTheRanksWithWrongProductsWhateverLanesSay) {
  const std::string wrong = to_hex(digest_of("wrong"));
  const auto audits = two_trials(3);
  LaneRecords records = right_lanes(3, audits);
  for (CheckRecord<LaneTrials>& record : records)
    if (record.data != 1) record.found = {.as_owner = {wrong, wrong}, .as_auditor = {wrong, wrong}};
  EXPECT_THAT(attribute(records, audits, true).ranks, ElementsAre(1)) << "two are wrong alike";
  const std::array with_wrong_products = {Suspect{.index = 0}, Suspect{.index = 2}};
  EXPECT_THAT(attribute(records, audits, true, with_wrong_products).ranks, ElementsAre(0, 2));
}

TEST(LaneAttribution, IsOfTheWholeCopyOfTheOneThatDiffers) {
  const auto audits = two_trials(3);
  LaneRecords records = right_lanes(3, audits);
  const LaneRecords stages = records;
  for (CheckRecord<LaneTrials> record : stages) {
    record.pipeline = 1;
    records.push_back(record);
  }
  records[1].found.as_owner[0] = to_hex(digest_of("wrong"));
  EXPECT_THAT(attribute(records, audits, false).ranks, ElementsAre(1, 4));
  records[2].found.restored_parameters = true;
  const LaneSuspects suspects = attribute(records, audits, false);
  EXPECT_THAT(suspects.ranks, ElementsAre(2)) << "that explains what differed once";
  EXPECT_TRUE(suspects.by_parameters);
}

TEST(LinkAttribution, IsOfTheEndThatAllLinksShare) {
  const LinkRecords records = records_of<LinkEnds>(3, 4);
  const Link one[] = {{.source = 0, .target = 1}},
             both[] = {{.source = 0, .target = 1}, {.source = 2, .target = 1}};
  Finding finding = attribute(records, one, /*lasts=*/true, 9);
  EXPECT_THAT(finding.suspects, IsEmpty()) << "either of two";
  EXPECT_EQ(finding.verified_step, 4U) << "of the worse end";
  EXPECT_EQ(finding.hardware, HardwareState::lasts);
  finding = attribute(records, both, false, 9);
  EXPECT_THAT(leaving(finding), ElementsAre(1));
  EXPECT_EQ(finding.suspects[0].kind, finding_kinds::once);
  EXPECT_EQ(finding.verified_step, 5U);
  EXPECT_THAT(finding.report.reason, HasSubstr("the link from rank 2 (host h2) to rank 1 (host h1)"));
}

TEST(ProductAttribution, IsOfThoseThatStayWrong) {
  ProductRecords records = records_of<TestedProducts>(3, 4);
  records[2].found = {.shape = "of 8 x 8", .lasts = false};
  Finding finding = attribute(records, 9);
  EXPECT_THAT(leaving(finding), ElementsAre(2)) << "the only one";
  EXPECT_EQ(finding.hardware, HardwareState::recovered);
  records[1].found = {.shape = "of 8 x 8", .lasts = true};
  finding = attribute(records, 9);
  EXPECT_THAT(leaving(finding), ElementsAre(1));
  EXPECT_EQ(finding.suspects.size(), 2U);
  EXPECT_EQ(finding.verified_step, 5U);
  records[2].found.lasts = true;
  EXPECT_THAT(leaving(attribute(records, 9)), IsEmpty()) << "of two copies of the model";
}

TEST(StateAttribution, IsOfThoseWhoFoundItInTheirMemory) {
  StateRecords records = records_of<HeldState>(3, 0);
  for (CheckRecord<HeldState>& record : records) record.found.run_state = {.digest = "a", .step = 9};
  records[1].found.blocks = 2;
  records[1].found.tensor = "head";
  records[1].found.elements = 8;
  Finding finding = attribute(records, /*steps_ahead=*/1, /*first_step=*/3);
  EXPECT_EQ(finding.of, VerdictSubject::state);
  EXPECT_THAT(leaving(finding), ElementsAre(1));
  EXPECT_EQ(finding.verified_step, 8U);
  EXPECT_THAT(
      finding.report.reason,
      "step 10: weights or optimizer state changed in memory: rank 1 (host h1): head, elements 0 to 7 and 1 "
      "more blocks");
  records[1].found.is_of_gradients = true;
  finding = attribute(records, 0, 3);
  EXPECT_EQ(finding.of, VerdictSubject::state);
  EXPECT_THAT(leaving(finding), ElementsAre(1));
  EXPECT_EQ(finding.verified_step, 7U);
  EXPECT_THAT(
      finding.report.reason,
      "step 9: sums of gradients changed in memory before the update: rank 1 (host h1): gradient of head, "
      "elements 0 to 7 and 1 more blocks");
  records[1].found.is_of_gradients = false;
  records[1].found.has_frozen = true;
  EXPECT_EQ(attribute(records, 1, 3).verified_step, 3U) << "since the load";
  records[1].found = {.is_of_update = true, .run_state = records[0].found.run_state};
  finding = attribute(records, 0, 3);
  EXPECT_EQ(finding.of, VerdictSubject::update);
  EXPECT_EQ(finding.suspects[0].kind, finding_kinds::once);
  records.pop_back();
  records[1].found = {.run_state = {.digest = "b", .step = 9}};
  finding = attribute(records, 1, 3);
  EXPECT_THAT(leaving(finding), IsEmpty()) << "of two nobody knows which";
  EXPECT_THAT(finding.report.reason, HasSubstr("it is not known of which rank"));
}

TEST(NumbersAttribution, IsOfTheRankWhoseLossesDiffer) {
  NumbersRecords records = records_of<ComputedNumbers>(3, 0);
  records[0].found.gradients_differ = true;
  EXPECT_EQ(attribute(records, true).rank, std::nullopt);
  records[2].found.losses_differ = true;
  EXPECT_EQ(attribute(records, true).rank, 2);
  EXPECT_EQ(attribute(records, true).differing_ranks, 2);
  EXPECT_EQ(attribute(records, /*copies_have_one_rank=*/false).rank, std::nullopt);
  records[1].found.restored_parameters = true;
  EXPECT_EQ(attribute(records, true).rank, 1);
  EXPECT_TRUE(attribute(records, true).by_parameters);
  records.resize(1);
  EXPECT_EQ(attribute(records, true).rank, 0) << "there is no other rank";
}

}  // namespace
}  // namespace holdfast::test
