// Replays of jobs that are small enough to add up by hand.
#include "runtime/report/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// MadeUpJob adds operations one after the other: those of a worker are done in the order of add().
struct MadeUpJob {
  TracedJob job;
  std::map<int, int> last;  // operation, by worker

  void add_worker(int replica, int stage) {
    job.workers.push_back({.rank = static_cast<int>(job.workers.size()), .replica = replica, .stage = stage});
  }
  int add(int worker, int kind, double duration_s, int meeting = -1) {
    const auto number = static_cast<int>(job.operations.size());
    job.operations.push_back({.worker = worker, .kind = kind, .meeting = meeting, .duration_s = duration_s});
    job.meetings = std::max(job.meetings, meeting + 1);
    if (last.contains(worker)) job.order.emplace_back(last[worker], number);
    last[worker] = number;
    return number;
  }
  WhatIf answer() const {
    const Result<WhatIf> result = ask_what_if(job);
    EXPECT_TRUE(result.ok()) << result.error().message;
    return result.ok() ? *result : WhatIf();
  }
};

// Two replicas, of which the second computes for 3 s and the first for 1 s, and then both exchange for half a
// second.
MadeUpJob two_replicas() {
  MadeUpJob made{.job = {.kinds = {{"forward", IdealDuration::mean}, {"reduce", IdealDuration::median}}},
                 .last = {}};
  for (int replica = 0; replica < 2; ++replica) {
    made.add_worker(replica, 0);
    made.add(replica, 0, replica == 0 ? 1.0 : 3.0);
    made.add(replica, 1, 0.5, 0);
  }
  return made;
}

TEST(WhatIf, WhatASlowReplicaCosts) {
  const WhatIf answer = two_replicas().answer();
  EXPECT_DOUBLE_EQ(answer.original_s, 3.5);
  EXPECT_DOUBLE_EQ(answer.ideal_s, 2.5);  // both forwards take 2 s
  EXPECT_DOUBLE_EQ(answer.slowdown, 1.4);
  EXPECT_THAT(answer.worker_slowdowns, ElementsAre(1.0, 1.4));
  EXPECT_DOUBLE_EQ(answer.worker_share, 1.0);
  EXPECT_DOUBLE_EQ(answer.last_stage_share, 0.0);  // there is one stage
  EXPECT_THAT(answer.blamed, ElementsAre(1));
  ASSERT_EQ(answer.lost.size(), 2u);
  EXPECT_DOUBLE_EQ(answer.lost[0].lost_s, 0.0);
  EXPECT_DOUBLE_EQ(answer.lost[0].alone_s, 0.0);
  EXPECT_DOUBLE_EQ(answer.lost[1].lost_s, 1.0);
  EXPECT_DOUBLE_EQ(answer.lost[1].alone_s, 1.0);
  EXPECT_EQ(answer.lost[1].mostly, "forward");
  EXPECT_THAT(answer.kind_slowdowns, ElementsAre(std::pair<std::string, double>("forward", 1.4),
                                                 std::pair<std::string, double>("reduce", 1.0)));
}

// Sections have nothing to do with each other: their times add up.
TEST(WhatIf, SectionsAddUp) {
  MadeUpJob made = two_replicas();
  const TracedJob once = made.job;
  for (Operation operation : once.operations) {
    operation.section = 1;
    if (operation.meeting >= 0) operation.meeting = 1;
    made.job.operations.push_back(operation);
  }
  for (const auto& [first, second] : once.order) made.job.order.emplace_back(first + 4, second + 4);
  made.job.sections = made.job.meetings = 2;
  EXPECT_DOUBLE_EQ(made.answer().original_s, 7.0);
  EXPECT_DOUBLE_EQ(made.answer().lost[1].lost_s, 2.0);
}

// The first stage is late by a second with work that nobody waits for: the other stage ends two seconds
// later.
TEST(WhatIf, NothingIsLostWhereThereIsSlack) {
  MadeUpJob made{.job = {.kinds = {{"forward"}, {"backward"}}}, .last = {}};
  made.add_worker(0, 0);
  made.add_worker(0, 1);
  const int sent = made.add(0, 0, 1.0);
  made.add(0, 1, 2.0);
  const int received = made.add(1, 0, 1.0);
  made.job.order.emplace_back(sent, received);
  for (int i = 0; i < 3; ++i) made.add(1, 1, 1.0);
  const WhatIf answer = made.answer();
  EXPECT_DOUBLE_EQ(answer.original_s, 5.0);
  EXPECT_DOUBLE_EQ(answer.ideal_s, 5.0);
  EXPECT_DOUBLE_EQ(answer.lost[0].lost_s, 0.0);
  EXPECT_DOUBLE_EQ(answer.lost[0].alone_s, 0.0);
  EXPECT_DOUBLE_EQ(answer.worker_share, 0.0);
  EXPECT_THAT(answer.blamed, IsEmpty());
}

// Two microbatches through stages of 1 s and 3 s, ideally of 2 s: 1 + 3 + 3 and 2 + 2 + 2; with an ideal last
// stage 1 + 2 + 2, which saves twice of what is lost.
TEST(WhatIf, LastStageThatIsTooLong) {
  MadeUpJob made{.job = {.kinds = {{"forward", IdealDuration::mean}}}, .last = {}};
  made.add_worker(0, 0);
  made.add_worker(0, 1);
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    const int sent = made.add(0, 0, 1.0), received = made.add(1, 0, 3.0);
    made.job.order.emplace_back(sent, received);
  }
  const WhatIf answer = made.answer();
  EXPECT_DOUBLE_EQ(answer.original_s, 7.0);
  EXPECT_DOUBLE_EQ(answer.ideal_s, 6.0);
  EXPECT_DOUBLE_EQ(answer.last_stage_share, 2.0);
  EXPECT_THAT(what_if_summary(made.job, answer), HasSubstr("200.0 % of what is lost is lost to it"));
}

// Returns 40 replicas, of which these take 2 s instead of 1 s.
WhatIf forty_replicas(const std::vector<int>& slow) {
  MadeUpJob made{.job = {.kinds = {{"forward"}, {"reduce"}}}, .last = {}};
  for (int replica = 0; replica < 40; ++replica) {
    made.add_worker(replica, 0);
    made.add(replica, 0, std::ranges::find(slow, replica) != slow.end() ? 2.0 : 1.0);
    made.add(replica, 1, 0.0, 0);
  }
  return made.answer();
}

// Each of two that are equally slow saves nothing alone, and costs all by itself.
TEST(WhatIf, BlamesTheFewestThatExplainHalf) {
  EXPECT_THAT(forty_replicas({7}).blamed, ElementsAre(7));
  EXPECT_DOUBLE_EQ(forty_replicas({7}).lost[7].lost_s, 1.0);
  const WhatIf two = forty_replicas({3, 7});
  EXPECT_THAT(two.blamed, ElementsAre(3, 7));
  EXPECT_DOUBLE_EQ(two.lost[7].lost_s, 0.0);
  EXPECT_DOUBLE_EQ(two.lost[7].alone_s, 1.0);
  const WhatIf three = forty_replicas({3, 7, 9});  // more than 3 % of the workers
  EXPECT_THAT(three.slowest, ElementsAre(3, 7));
  EXPECT_DOUBLE_EQ(three.worker_share, 0.0);
  EXPECT_THAT(three.blamed, IsEmpty());
}

TEST(WhatIf, ACircleIsASentence) {
  MadeUpJob made = two_replicas();
  made.job.order.emplace_back(1, 0);
  const Result<WhatIf> answer = ask_what_if(made.job);
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ExitCode::data);
  EXPECT_THAT(answer.error().message, HasSubstr("wait for each other in a circle"));
}

TEST(WhatIf, AStageOfWhichOneRankIsSlowIsNotToBlame) {
  MadeUpJob made{.job = {.kinds = {{"forward"}}}, .last = {}};
  for (int worker = 0; worker < 4; ++worker) {
    made.add_worker(worker / 2, worker % 2);
    made.add(worker, 0, worker == 3 ? 2.0 : 1.0);
  }
  const WhatIf answer = made.answer();
  EXPECT_THAT(answer.blamed, ElementsAre(3));
  EXPECT_DOUBLE_EQ(answer.last_stage_share, 1.0);
  EXPECT_THAT(what_if_summary(made.job, answer), Not(HasSubstr("last stage")));
}

TEST(WhatIf, SaysWhomItBlames) {
  const MadeUpJob made = two_replicas();
  const std::string text = what_if_summary(made.job, made.answer());
  EXPECT_THAT(text, HasSubstr("1 step replayed: 3.5 s, with ideal operations 2.5 s: slowdown 1.400"));
  EXPECT_THAT(text, HasSubstr("1.000 s lost to rank 1, mostly in forward"));
  const std::string json = what_if_json(made.job, made.answer());
  EXPECT_THAT(json, HasSubstr("\"blamed\""));
  EXPECT_THAT(json, HasSubstr("\"lost_s\": 1.0"));
}

}  // namespace
}  // namespace holdfast::test
