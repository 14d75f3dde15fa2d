// Tests what becomes of a step in which a link between replicas changes gradients, once or for good.
#include "runtime/integrity/link_check.h"

#include <gmock/gmock.h>

#include <mutex>

#include "tests/support/worker_rig.h"

namespace holdfast::test {
namespace {

struct LinkedRun {
  Digest weights = {};
  std::vector<VerdictEvent> verdicts = {};
  std::uint64_t ended_at = 0;  // step whose verdict ended the run; 0: none
  std::vector<int> leaving_ranks = {};
  std::optional<Rollback> rollback = {};
  std::vector<int> messages = {};             // by rank: lanes of buckets that it receives in a step
  std::vector<HardwareRecord> hardware = {};  // by rank
};

struct LinkFaults {
  int ranks = 2, steps = 5, pipeline = 1;
  std::string faults = {};
  std::int64_t audit_every_steps = 1;
  std::function<void(Config&)> settings = [](Config&) {};
};

int messages_of_step(const Worker& worker) {
  const BucketPlan& buckets = worker.workload().buckets;
  const LaneSchedule& lanes = worker.workload().lanes;
  const int replica = worker.rank().coordinate.data;
  int owned = 0, messages = 0;
  for (int bucket = 0; bucket < buckets.local_count(); ++bucket)
    owned += buckets.gradient_range(bucket, replica).size() > 0 ? 1 : 0;
  for (int wave = 0; wave < lanes.waves(); ++wave)
    messages += owned * (lanes.lanes_in_wave(wave) - (lanes.lane_of(wave, replica) >= 0 ? 1 : 0));
  return messages;
}

LinkedRun make_linked_steps(const LinkFaults& run) {
  Config config = two_layers(/*lanes=*/4);
  config.parallel.pipeline = run.pipeline;
  config.verdict.audit_every_steps = run.audit_every_steps;
  config.verdict.findings_window_ms = 60'000;
  run.settings(config);
  LinkedRun made{.messages = std::vector<int>(static_cast<std::size_t>(run.ranks))};
  WorkerRig rig(config, run.ranks);
  rig.arm(run.faults);
  rig.run([&](Worker& worker) -> Result<void> {
    const int rank = worker.rank().communicator.rank();
    made.messages[static_cast<std::size_t>(rank)] = messages_of_step(worker);
    for (int step = 1; step <= run.steps; ++step) {
      HF_TRY(const StepOutcome outcome, run_step(worker, {}));
      HF_TRY_VOID(outcome.gathers);
      if (rank == 0 && outcome.verdict.has_value()) made.verdicts.push_back(*outcome.verdict);
      if (rank == 0 && outcome.ends_steps) {
        made.ended_at = outcome.step;
        made.leaving_ranks = outcome.leaving_ranks;
        made.rollback = outcome.rollback;
      }
      if (outcome.ends_steps) break;
    }
    HF_TRY_VOID(worker.parameter_gather().finish());
    const std::size_t bytes =
        worker.workload().buckets.parameter_elements() * bytes_of(worker.workload().spec.dtype);
    if (rank == 0) made.weights = digest_of(std::span(worker.stage().parameters(), bytes));
    return {};
  });
  made.hardware = rig.hardware();
  return made;
}

// Messages number `first` to `last` of the rank, counted from 1, arrive with a changed bit.
std::string changed_messages(int rank, int first, int last) {
  std::string faults;
  for (int hit = first; hit <= last; ++hit)
    faults += fmt::format("{}reduce.received@{}:{}=flip:gradients:20", faults.empty() ? "" : ",", hit, rank);
  return faults;
}

constexpr int for_good = 400;  // messages, more than of all steps here

TEST(LinkCheck, ACleanRunHasNoVerdict) {
  const LinkedRun expected = make_linked_steps({.ranks = 1, .audit_every_steps = 0});
  for (const auto& [ranks, slots] : {std::pair{2, false}, {3, false}, {4, true}}) {
    const LinkedRun made = make_linked_steps(
        {.ranks = ranks, .settings = [&](Config& config) { config.optimizer.shard_gradients = slots; }});
    EXPECT_THAT(made.verdicts, testing::IsEmpty());
    EXPECT_EQ(made.weights, expected.weights);
  }
}

TEST(LinkCheck, AChangedBitIsSentAgain) {
  const LinkedRun expected = make_linked_steps({.audit_every_steps = 0});
  for (const int rank : {0, 1}) {
    const int hit = 2 * expected.messages[static_cast<std::size_t>(rank)] + 3;  // in the third step
    const LinkedRun made = make_linked_steps({.faults = changed_messages(rank, hit, hit)});
    EXPECT_EQ(made.weights, expected.weights);
    ASSERT_EQ(made.verdicts.size(), 1U);
    const VerdictEvent& verdict = made.verdicts[0];
    EXPECT_EQ(verdict.step, 3U);
    EXPECT_EQ(verdict.what, "corruption");
    EXPECT_EQ(verdict.action, "redo");
    EXPECT_EQ(verdict.of, "links");
    EXPECT_EQ(verdict.attempts, 2);
    EXPECT_FALSE(verdict.rank.has_value());
    EXPECT_EQ(
        verdict.reason,
        fmt::format(
            "step 3: the link from rank {0} (host {2}) to rank {1} (host {2}) delivered other gradients "
            "than were sent, but the right ones when they were sent again; the numbers of the second "
            "attempt count",
            1 - rank, rank, posix_env().host_name()));
    for (const HardwareRecord& record : made.hardware)
      EXPECT_TRUE(record.devices.empty()) << "either may be it";
  }
}

TEST(LinkCheck, NothingIsFoundWhereNoAuditIs) {
  const LinkedRun made = make_linked_steps({.faults = changed_messages(1, 3, 3), .audit_every_steps = 2});
  EXPECT_THAT(made.verdicts, testing::IsEmpty());
  EXPECT_NE(made.weights, make_linked_steps({}).weights);
}

TEST(LinkCheck, NamesTheLinkOfAStage) {
  // Ranks 1 and 3 have the second stage.
  const LinkedRun made = make_linked_steps({.ranks = 4, .pipeline = 2, .faults = changed_messages(3, 2, 2)});
  ASSERT_EQ(made.verdicts.size(), 1U);
  EXPECT_THAT(made.verdicts[0].reason, testing::HasSubstr("the link from rank 1 (host"));
  EXPECT_THAT(made.verdicts[0].reason, testing::HasSubstr(") to rank 3 (host"));
  EXPECT_EQ(made.weights, make_linked_steps({.ranks = 4, .pipeline = 2}).weights);
}

TEST(LinkCheck, ALinkThatChangesGradientsForGoodEndsTheRun) {
  const LinkedRun clean = make_linked_steps({.steps = 2, .audit_every_steps = 2});
  const int first = 3 * clean.messages[1] + 1;  // of the fourth step
  const std::string faults = changed_messages(1, first, first + for_good);
  const LinkedRun made = make_linked_steps({.faults = faults, .audit_every_steps = 2});
  EXPECT_EQ(made.ended_at, 4U);
  ASSERT_EQ(made.verdicts.size(), 1U);
  EXPECT_EQ(made.verdicts[0].action, "stop");
  EXPECT_THAT(made.leaving_ranks, testing::IsEmpty());
  EXPECT_THAT(made.verdicts[0].reason,
              testing::AllOf(
                  testing::HasSubstr("and so when they were sent again; weights may be wrong since step 2; "
                                     "the update was not made. Test the cables"),
                  testing::EndsWith("start again without one of them, from step 2 or before")));
  ASSERT_TRUE(made.rollback.has_value());
  EXPECT_EQ(made.rollback->trusted_step, 2U);
  for (const HardwareRecord& record : made.hardware) EXPECT_TRUE(record.devices.empty());

  const LinkedRun goes_on =
      make_linked_steps({.faults = faults, .audit_every_steps = 2, .settings = [](Config& config) {
                           config.verdict.on_wrong_rank = "continue";
                         }});
  EXPECT_EQ(goes_on.ended_at, 4U);
  EXPECT_FALSE(goes_on.rollback.has_value());
}

TEST(LinkCheck, ARankAllOfWhoseLinksChangeGradientsLeaves) {
  const LinkedRun made = make_linked_steps({.ranks = 3, .faults = changed_messages(1, 1, for_good)});
  EXPECT_EQ(made.ended_at, 1U);
  ASSERT_EQ(made.verdicts.size(), 1U);
  EXPECT_EQ(made.verdicts[0].action, "evict") << made.verdicts[0].reason;
  EXPECT_EQ(made.verdicts[0].rank, 1);
  EXPECT_THAT(made.verdicts[0].reason, testing::HasSubstr("rank 1 (host"));
  EXPECT_THAT(made.leaving_ranks, testing::ElementsAre(1));
  ASSERT_TRUE(made.rollback.has_value());
  EXPECT_EQ(made.rollback->trusted_step, 0U);
  for (const HardwareRecord& record : made.hardware) {
    ASSERT_EQ(record.devices.size(), 1U);
    EXPECT_EQ(record.devices[0].findings[0].what, "lasts");
  }
}

TEST(LinkCheck, ARankThatIsNeededStays) {
  const LinkedRun made = make_linked_steps(
      {.ranks = 3, .faults = changed_messages(1, 1, for_good), .settings = [](Config& config) {
         config.elastic.min_data_parallel = 3;
       }});
  EXPECT_EQ(made.ended_at, 1U);
  EXPECT_EQ(made.verdicts[0].action, "stop");
  EXPECT_EQ(made.verdicts[0].rank, 1);
  EXPECT_THAT(made.leaving_ranks, testing::IsEmpty());
}

TEST(LinkCheck, ARankLeavesAtTheSecondFinding) {
  const LinkedRun clean = make_linked_steps({.ranks = 3, .steps = 4});
  const int messages = clean.messages[1];
  // All that arrives in the first attempts at steps 1 and 2.
  const std::string faults =
      changed_messages(1, 1, messages) + "," + changed_messages(1, 2 * messages + 1, 3 * messages);
  const LinkedRun made = make_linked_steps({.ranks = 3, .steps = 4, .faults = faults});
  ASSERT_EQ(made.verdicts.size(), 2U);
  EXPECT_EQ(made.verdicts[0].action, "redo") << made.verdicts[0].reason;
  EXPECT_EQ(made.verdicts[0].rank, 1);
  EXPECT_EQ(made.verdicts[1].action, "evict") << made.verdicts[1].reason;
  EXPECT_THAT(made.verdicts[1].reason, testing::HasSubstr("this is the second finding about cpu of host"));
  EXPECT_THAT(made.leaving_ranks, testing::ElementsAre(1));
  EXPECT_FALSE(made.rollback.has_value());
  EXPECT_EQ(made.weights, make_linked_steps({.ranks = 3, .steps = 1}).weights);
}

TEST(LinkCheck, ABadSampleBesidesIsSkipped) {
  const std::string bad = "data.sample@18=nan";  // of the third step
  const LinkedRun expected = make_linked_steps({.faults = bad});
  const int hit = 2 * expected.messages[1] + 3;
  const LinkedRun made = make_linked_steps({.faults = bad + "," + changed_messages(1, hit, hit)});
  ASSERT_EQ(made.verdicts.size(), 1U);
  EXPECT_EQ(made.verdicts[0].step, 3U);
  EXPECT_EQ(made.verdicts[0].action, "skip");
  EXPECT_EQ(made.verdicts[0].attempts, 4);
  EXPECT_THAT(made.verdicts[0].reason, testing::AllOf(testing::HasSubstr("the link from rank 0 (host"),
                                                      testing::HasSubstr("; then step 3: ")));
  EXPECT_EQ(made.weights, expected.weights);
}

}  // namespace
}  // namespace holdfast::test
