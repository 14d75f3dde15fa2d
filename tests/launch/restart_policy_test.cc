// What follows a start that ended, as a table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/launch/restart_policy.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using Record = StartEnd::Record;

StartEnd died(std::uint64_t step_before, std::uint64_t step, const std::string& who = "rank 1") {
  return {.step_before = step_before, .step = step, .fault = who + " died", .kind = who + " died"};
}
StartEnd mpirun_killed(std::uint64_t step_before, std::uint64_t step) {
  return {.step_before = step_before, .step = step, .fault = "mpirun was killed"};
}
RestartDecision after(const std::vector<StartEnd>& starts, bool stop_requested = false) {
  return after_start(starts, stop_requested, {});
}

TEST(RestartPolicy, TheRecordDecidesAndNotHowMpirunEnded) {
  StartEnd end = mpirun_killed(0, 50);
  end.record = Record::finished;
  for (const bool stop : {false, true}) {
    const RestartDecision decision = after({end}, stop);
    EXPECT_FALSE(decision.restart);
    EXPECT_EQ(decision.code, ExitCode::done);
  }
  end.record = Record::saved;
  EXPECT_FALSE(after({end}).restart);
  EXPECT_EQ(after({end}).code, ExitCode::saved) << "run.stop_after, too";
  EXPECT_THAT(after({end}, true).sentence, HasSubstr("saved at step 50"));
}

TEST(RestartPolicy, AnErrorThatEveryStartMeetsEndsAtOnceWithItsCode) {
  for (const ExitCode code :
       {ExitCode::config, ExitCode::does_not_fit, ExitCode::data, ExitCode::checkpoint, ExitCode::numerics}) {
    const StartEnd end{.record = Record::failed, .code = code};
    for (const bool stop : {false, true}) {
      const RestartDecision decision = after({end}, stop);
      EXPECT_FALSE(decision.restart);
      EXPECT_EQ(decision.code, code);
    }
  }
}

TEST(RestartPolicy, ALostPeerIsStartedAgainAtOnceAfterNewSteps) {
  const StartEnd end{.record = Record::failed,
                     .code = ExitCode::communication,
                     .step_before = 10,
                     .step = 20,
                     .fault = "rank 1 died",
                     .kind = "rank 1 died"};
  const RestartDecision decision = after({end});
  EXPECT_TRUE(decision.restart);
  EXPECT_EQ(decision.delay_ms, 0);
  EXPECT_EQ(decision.sentence, "rank 1 died");
}

TEST(RestartPolicy, WaitsLongerAndLongerUntilThereAreNewSteps) {
  std::vector<StartEnd> starts = {mpirun_killed(0, 20)};
  EXPECT_EQ(after(starts).delay_ms, 0);
  for (const std::int64_t delay_ms : {1000, 2000, 4000, 8000}) {
    starts.push_back(mpirun_killed(20, 15));
    EXPECT_TRUE(after(starts).restart);
    EXPECT_EQ(after(starts).delay_ms, delay_ms);
  }
  starts.push_back(mpirun_killed(20, 21));
  EXPECT_EQ(after(starts).delay_ms, 0);
  starts.push_back(mpirun_killed(21, 21));
  EXPECT_EQ(after(starts).delay_ms, 1000);
}

TEST(RestartPolicy, TheDelayHasALimit) {
  const std::vector<StartEnd> starts(30, mpirun_killed(5, 5));
  const RestartLimits patient{.without_progress = 100};
  EXPECT_EQ(after_start(starts, false, patient).delay_ms, patient.longest_delay_ms);
}

TEST(RestartPolicy, StopsWithoutProgress) {
  std::vector<StartEnd> starts(4, mpirun_killed(7, 7));
  EXPECT_TRUE(after(starts).restart);
  starts.push_back(mpirun_killed(7, 6));
  const RestartDecision decision = after(starts);
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.code, ExitCode::communication);
  EXPECT_THAT(decision.sentence, HasSubstr("5 starts in a row reached no step beyond"));
  EXPECT_THAT(decision.sentence, HasSubstr("mpirun was killed"));
}

TEST(RestartPolicy, ReachingWhatWasReachedBeforeIsNoProgress) {
  const std::vector<StartEnd> starts = {mpirun_killed(0, 40), mpirun_killed(40, 30), mpirun_killed(30, 40)};
  EXPECT_EQ(after(starts).delay_ms, 2000);
}

TEST(RestartPolicy, StopsWhenTheSameStepFailsTheSameWay) {
  std::vector<StartEnd> starts = {died(0, 11), died(11, 11)};
  EXPECT_TRUE(after(starts).restart);
  starts.push_back(died(11, 11));
  const RestartDecision decision = after(starts);
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.code, ExitCode::communication);
  EXPECT_THAT(decision.sentence,
              HasSubstr("3 starts in a row ended behind step 11 in the same way (rank 1 died)"));
}

TEST(RestartPolicy, AnotherRankOrAnotherStepIsAnotherFault) {
  EXPECT_TRUE(after({died(0, 11), died(11, 11), died(11, 11, "rank 2")}).restart);
  EXPECT_TRUE(after({died(0, 11), died(11, 13), died(13, 13)}).restart);
  EXPECT_TRUE(after({died(0, 11), mpirun_killed(11, 11), died(11, 11)}).restart);
}

TEST(RestartPolicy, TheLastStepMayBeMissingInTheLogOfTheKilled) {
  EXPECT_FALSE(after({died(0, 10), died(10, 11), died(11, 11)}).restart);
  EXPECT_FALSE(after({died(0, 11), died(11, 10), died(10, 11)}).restart);
}

TEST(RestartPolicy, AKilledLauncherSaysNothingAboutTheRun) {
  EXPECT_TRUE(after({mpirun_killed(0, 11), mpirun_killed(11, 11), mpirun_killed(11, 11)}).restart);
}

TEST(RestartPolicy, AStopIsNotFollowedByAStart) {
  const RestartDecision decision = after({died(0, 11)}, /*stop_requested=*/true);
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.code, ExitCode::saved);
  EXPECT_THAT(decision.sentence, HasSubstr("before it could save (rank 1 died)"));
}

TEST(RestartPolicy, AnErrorThatIsNotTheRunsOwnIsTriedAgain) {
  const StartEnd end{.record = Record::failed, .code = ExitCode::data, .reach = Reach::minute};
  EXPECT_TRUE(after({end}).restart);
  EXPECT_EQ(after({end}).code, ExitCode::communication);
}

TEST(RestartPolicy, TriesForAsLongAsTheWorkOfALostStartIsWorth) {
  std::vector<StartEnd> starts(9, mpirun_killed(7, 7));
  for (std::size_t i = 0; i < starts.size(); ++i)
    starts[i].begun_ns = static_cast<std::int64_t>(i) * 10'000'000'000,
    starts[i].ended_ns = starts[i].begun_ns;
  EXPECT_TRUE(after_start(starts, false, {.patience_ms = 100'000}).restart);
  EXPECT_FALSE(after_start(starts, false, {.patience_ms = 60'000}).restart);
}

TEST(RestartPolicy, ShortStartsThatEndAlikeAgainAndAgainAreDelayed) {
  std::vector<StartEnd> starts;
  std::vector<std::int64_t> delays;
  for (std::uint64_t step = 0; step < 60; step += 10) {
    starts.push_back(died(step, step + 10));
    starts.back().is_short = true;
    delays.push_back(after(starts).delay_ms);
  }
  EXPECT_EQ(delays, (std::vector<std::int64_t>{0, 0, 0, 1000, 2000, 4000}));
}

// Hosts

std::vector<LaunchHost> hosts(const std::vector<int>& slots, const std::vector<std::size_t>& lost) {
  std::vector<LaunchHost> all;
  for (const int count : slots) all.push_back({.name = "h", .slots = count});
  for (const std::size_t index : lost) all[index].answers = false;
  return all;
}

TEST(HostsLeft, AllAnswerAllRanks) {
  EXPECT_EQ(ranks_on_hosts_left(hosts({2, 2, 2}, {}), {5, 4, 9}), 5) << "as it was asked for";
  EXPECT_EQ(ranks_on_hosts_left({}, {3, 1, 1}), 3) << "no hosts named: mpirun knows";
}

TEST(HostsLeft, RanksThatTheOthersHaveRoomFor) {
  EXPECT_EQ(ranks_on_hosts_left(hosts({4, 4, 4}, {1}), {12, 1, 1}), 8);
  EXPECT_EQ(ranks_on_hosts_left(hosts({4, 4, 4}, {1}), {6, 1, 1}), 6) << "there was room to spare";
  EXPECT_EQ(ranks_on_hosts_left(hosts({8, 4, 4}, {0}), {16, 1, 1}), 8);
}

TEST(HostsLeft, TheirShareWhereNobodySaysHowMuchRoomThereIs) {
  EXPECT_EQ(ranks_on_hosts_left(hosts({0, 0, 0, 0}, {2}), {8, 1, 1}), 6);
  EXPECT_EQ(ranks_on_hosts_left(hosts({1, 1}, {0}), {8, 1, 1}), 4) << "more ranks than slots";
}

TEST(HostsLeft, WholeCopiesOfTheModel) {
  EXPECT_EQ(ranks_on_hosts_left(hosts({3, 3, 3}, {2}), {9, 4, 1}), 4);
}

TEST(HostsLeft, OfARangeAsManyAsTheyHaveSlotsFor) {
  const auto left = [](std::vector<LaunchHost> hosts, int most, int per_copy, int least) {
    return ranks_on_hosts_left(hosts,
                               {.ranks = most, .per_copy = per_copy, .min_copies = least, .at_most = true});
  };
  EXPECT_EQ(left(hosts({2, 2}, {}), 9, 1, 2), 4) << "all of them answer";
  EXPECT_EQ(left(hosts({4, 4, 4}, {}), 9, 1, 2), 9);
  EXPECT_EQ(left(hosts({4, 4, 4}, {1}), 9, 1, 2), 8);
  EXPECT_EQ(left(hosts({3, 4}, {}), 12, 2, 1), 6) << "whole copies";
  EXPECT_EQ(left(hosts({2, 2}, {0}), 9, 1, 3), std::nullopt);
  EXPECT_EQ(left(hosts({0, 0}, {}), 8, 1, 1), 8) << "nobody says how much room there is";
  EXPECT_EQ(left({}, 8, 1, 1), 8) << "no hosts named: mpirun knows";
}

TEST(HostsLeft, NoMoreRanksThanSlotsWhereTheHostsHadSlotsForAll) {
  RanksWanted wanted{.ranks = 6, .within_slots = true};
  EXPECT_EQ(ranks_on_hosts_left(hosts({2, 2}, {}), wanted), 4) << "a third is no longer named";
  EXPECT_EQ(ranks_on_hosts_left(hosts({2, 2}, {0}), wanted), 2);
  EXPECT_EQ(ranks_on_hosts_left(hosts({4, 4}, {}), wanted), 6);
  wanted.per_copy = 4;
  EXPECT_EQ(ranks_on_hosts_left(hosts({3, 3}, {}), wanted), 6) << "two of them are spares";
}

TEST(HostsLeft, SparesGoFirst) {
  RanksWanted wanted{.ranks = 32, .spares = 8, .within_slots = true};
  EXPECT_EQ(ranks_on_hosts_left(hosts({8, 8, 8, 8}, {}), wanted), 32);
  EXPECT_EQ(ranks_on_hosts_left(hosts({4, 8, 8, 8}, {}), wanted), 28) << "four of them are spares";
  EXPECT_EQ(ranks_on_hosts_left(hosts({8, 8, 8, 8}, {0}), wanted), 24);
  EXPECT_EQ(ranks_on_hosts_left(hosts({8, 8, 8, 8}, {0, 1}), wanted), 16);
  wanted = {.ranks = 10, .per_copy = 4, .spares = 2, .within_slots = true};
  EXPECT_EQ(ranks_on_hosts_left(hosts({5, 4}, {}), wanted), 9) << "one is a spare";
  EXPECT_EQ(ranks_on_hosts_left(hosts({5, 2}, {}), wanted), 4) << "a copy is lost, and there is no spare";
}

TEST(HostsLeft, SparesThatTheLossOfAHostTakes) {
  const RanksWanted wanted{.ranks = 32, .spares = 8};
  EXPECT_EQ(spares_for_a_host(hosts({4, 2, 4}, {0}), wanted), 4);
  EXPECT_EQ(spares_for_a_host(hosts({16, 16}, {}), wanted), 8) << "as many as are wanted";
  EXPECT_EQ(spares_for_a_host(hosts({0, 0}, {}), wanted), 8) << "nobody knows";
  EXPECT_EQ(spares_for_a_host({}, wanted), 0);
}

TEST(HostsLeft, WaitsWhenTooFewAreLeft) {
  EXPECT_EQ(ranks_on_hosts_left(hosts({4, 4}, {0}), {8, 1, 5}), std::nullopt);
  EXPECT_EQ(ranks_on_hosts_left(hosts({4, 4}, {0}), {8, 8, 1}), std::nullopt);
  EXPECT_EQ(ranks_on_hosts_left(hosts({4, 4}, {0, 1}), {8, 1, 0}), std::nullopt);
}

// Tests which layout a start has on hosts that have no room for a copy of the model as the run asks for it.

Config run_of(int pipeline, int tensor, int lanes = 4) {
  Config config;
  config.model.layers = 6;
  config.model.heads = 8;
  config.model.width = 64;
  config.training.sequence_length = 32;
  config.parallel.lanes = lanes;
  config.parallel.pipeline = pipeline;
  config.parallel.tensor = tensor;
  EXPECT_TRUE(resolve_config(config, 256).ok());
  return config;
}

// Returns the layout where, of the hosts of a run of so many copies, those with these slots are left.
std::optional<StartLayout> left(const Config& run, std::vector<int> slots, int copies = 1, int min_copies = 1,
                                int min_ranks = 1) {
  std::vector<LaunchHost> hosts = {{.name = "lost", .slots = 8, .answers = false}};
  for (const int count : slots) hosts.push_back({.name = "h", .slots = count});
  const auto per_copy = static_cast<int>(run.parallel.pipeline * run.parallel.tensor);
  return narrower_layout(
      run, hosts,
      {.ranks = copies * per_copy, .per_copy = per_copy, .min_copies = min_copies, .within_slots = true},
      min_ranks);
}

using Layout = std::optional<StartLayout>;

TEST(StartLayout, KeepsTheTensorGroupsThatHaveAHost) {
  EXPECT_EQ(left(run_of(2, 4), {4}), Layout({.ranks = 4, .pipeline = 1, .tensor = 4}));
  EXPECT_EQ(left(run_of(2, 4), {2, 2}), Layout({.ranks = 4, .pipeline = 2, .tensor = 2}));
  EXPECT_EQ(left(run_of(2, 4), {2, 1}), Layout({.ranks = 2, .pipeline = 1, .tensor = 2}));
  EXPECT_EQ(left(run_of(4, 2), {1, 1, 1}), Layout({.ranks = 3, .pipeline = 3, .tensor = 1}));
  EXPECT_EQ(left(run_of(4, 1), {1}), Layout({.ranks = 1, .pipeline = 1, .tensor = 1}));
}

TEST(StartLayout, KeepsTheCopiesThatTheRunMayNotLose) {
  EXPECT_EQ(left(run_of(4, 1), {5}, /*copies=*/2, /*min_copies=*/2),
            Layout({.ranks = 4, .pipeline = 2, .tensor = 1}));
  EXPECT_EQ(left(run_of(4, 1), {1}, /*copies=*/2, /*min_copies=*/2), Layout());
  EXPECT_EQ(left(run_of(4, 2), {3, 3}, /*copies=*/3, /*min_copies=*/1),
            Layout({.ranks = 6, .pipeline = 3, .tensor = 1}))
      << "two copies of three stages: more ranks than any with groups of two";
}

TEST(StartLayout, HasAsManyRanksAsFit) {
  EXPECT_EQ(left(run_of(2, 4), {2}, 1, 1, /*min_ranks=*/3), Layout());
  EXPECT_EQ(left(run_of(2, 4), {4}, 1, 1, /*min_ranks=*/3), Layout({.ranks = 4, .pipeline = 1, .tensor = 4}));
  EXPECT_EQ(left(run_of(2, 4), {}), Layout());
}

TEST(StartLayout, OneStageHasNothingToInterleave) {
  Config run = run_of(2, 1);
  run.parallel.pipeline_schedule = "interleaved";
  run.parallel.pipeline_chunks = 2;
  EXPECT_EQ(left(run, {1}), Layout({.ranks = 1, .pipeline = 1, .tensor = 1}));
}

// Each copy has a lane.
TEST(StartLayout, HasNoMoreCopiesThanTheRunAsksFor) {
  EXPECT_EQ(left(run_of(4, 2, /*lanes=*/1), {7}), Layout({.ranks = 6, .pipeline = 3, .tensor = 2}));
  EXPECT_EQ(left(run_of(4, 2), {7}, /*copies=*/2), Layout({.ranks = 6, .pipeline = 3, .tensor = 2}));
}

}  // namespace

}  // namespace holdfast::test
