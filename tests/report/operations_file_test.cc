// Operations of other trainers: the table, and what comes after what.
#include "runtime/report/operations_file.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string header = "step\trank\treplica\tstage\tchunk\tkind\tbegin_s\tduration_s\n";

// MadeUpTable writes lines of the table; a rank is a replica's stage, and all in step 5.
struct MadeUpTable {
  int stages = 1;
  std::string text = header;

  void add(int replica, int stage, const char* kind, double begin_s, double end_s, int chunk = 0) {
    text += fmt::format("5\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", replica * stages + stage, replica, stage, chunk,
                        kind, begin_s, end_s - begin_s);
  }
};

Result<TracedJob> job_of_text(const std::string& text) {
  HF_TRY(std::vector<TracedOperation> operations, parse_operations(text, "there"));
  return job_of(std::move(operations), "there");
}

WhatIf answer_to(const std::string& text) {
  const Result<TracedJob> job = job_of_text(text);
  EXPECT_TRUE(job.ok()) << job.error().message;
  if (!job.ok()) return {};
  const Result<WhatIf> answer = ask_what_if(*job);
  EXPECT_TRUE(answer.ok()) << answer.error().message;
  return answer.ok() ? *answer : WhatIf();
}

// One microbatch through two stages of two replicas. A forward takes 1 s, but 3 s on rank 2 (stage 0 of the
// second replica), a backward 2 s, a message 0.25 s from when both ends are there, the reduction of gradients
// 0.5 s from when both replicas are there, the optimizer 0.125 s.
std::string two_by_two() {
  MadeUpTable table{.stages = 2};
  for (int replica = 0; replica < 2; ++replica) {
    const double late = replica * 2.0;
    table.add(replica, 0, "forward-compute", 0.0, 1.0 + late);
    table.add(replica, 0, "forward-send", 1.0 + late, 1.25 + late);
    table.add(replica, 1, "forward-recv", 0.0, 1.25 + late);
    table.add(replica, 1, "forward-compute", 1.25 + late, 2.25 + late);
    table.add(replica, 1, "backward-compute", 2.25 + late, 4.25 + late);
    table.add(replica, 1, "backward-send", 4.25 + late, 4.5 + late);
    table.add(replica, 0, "backward-recv", 1.25 + late, 4.5 + late);
    table.add(replica, 0, "backward-compute", 4.5 + late, 6.5 + late);
    for (int stage = 0; stage < 2; ++stage) {
      const double done = (stage == 0 ? 6.5 : 4.25);
      table.add(replica, stage, "grads-reduce-scatter", done + late, done + 2.5);
      table.add(replica, stage, "optimizer-clip-main-grad", done + 2.5, 9.0);
      table.add(replica, stage, "optimizer", 9.0, 9.125);
    }
  }
  return table.text;
}

TEST(Operations, ReplayTakesAsLongAsTheTrace) {
  const WhatIf answer = answer_to(two_by_two());
  EXPECT_NEAR(answer.original_s, 9.125, 1e-9);
  // The forwards' mean is 1.5 s: 1.5 + 0.25 + 1.5 + 2 + 0.25 + 2 + 0.5 + 0.125.
  EXPECT_NEAR(answer.ideal_s, 8.125, 1e-9);
  EXPECT_THAT(answer.blamed, ElementsAre(2));
  EXPECT_EQ(answer.lost[2].mostly, "forward-compute");
  // With 1.5 s instead of 3 s there; replica 0 is done a second and a half earlier anyway.
  EXPECT_NEAR(answer.lost[2].lost_s, 1.5, 1e-9);
  EXPECT_NEAR(answer.lost[0].lost_s, 0.0, 1e-9);
  EXPECT_NEAR(answer.lost[1].lost_s, 0.0, 1e-9);
  EXPECT_NEAR(answer.lost[3].lost_s, 0.0, 1e-9);
}

// A reduction that overlaps the backwards comes after the last backward of its chunk, and before what follows.
TEST(Operations, ReductionsThatOverlap) {
  MadeUpTable table{};
  for (int replica = 0; replica < 2; ++replica) {
    table.add(replica, 0, "params-all-gather", 0.0, 1.0);
    table.add(replica, 0, "forward-compute", 1.0, 2.0);
    table.add(replica, 0, "backward-compute", 2.0, 3.0);
    table.add(replica, 0, "grads-reduce-scatter", 3.0, 7.0);
    table.add(replica, 0, "layernorm-grads-all-reduce", 7.0, 7.5);
    table.add(replica, 0, "separate-grads-all-reduce", 7.5, 8.0);
    table.add(replica, 0, "optimizer", 8.0, 9.0);
  }
  EXPECT_NEAR(answer_to(table.text).original_s, 9.0, 1e-9);
}

// Two stages of two chunks each, one microbatch: what the last stage sends of its first chunk goes to the
// first stage's second one. The trace has messages that never left, where the model begins and ends.
TEST(Operations, ChunksAndMessagesThatNeverLeft) {
  for (const bool all : {true, false}) {
    MadeUpTable table{.stages = 2};
    const auto forward = [&](int stage, int chunk, double begin_s) {
      table.add(0, stage, "forward-compute", begin_s, begin_s + 1, chunk);
    };
    const auto pass = [&](int stage, double begin_s) {
      table.add(0, stage, "forward-send", begin_s, begin_s + 0.5, -1);
      table.add(0, 1 - stage, "forward-recv", 0.25, begin_s + 0.5, -1);
    };
    if (all) table.add(0, 0, "forward-recv", 0.0, 0.0, -1);
    forward(0, 0, 0.0);
    pass(0, 1.0);
    forward(1, 0, 1.5);
    pass(1, 2.5);
    forward(0, 1, 3.0);
    pass(0, 4.0);
    forward(1, 1, 4.5);
    if (all) table.add(0, 1, "forward-send", 5.5, 5.5, -1);
    table.add(0, 1, "forward-recv", 6.0, 6.0, -1);  // after the last forward
    const Result<TracedJob> job = job_of_text(table.text);
    ASSERT_TRUE(job.ok()) << job.error().message;
    EXPECT_EQ(job->meetings, 3);
    const Result<WhatIf> answer = ask_what_if(*job);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_NEAR(answer->original_s, 5.5, 1e-9);
  }
}

TEST(Operations, ColumnsMayStandInAnyOrderBesideOthers) {
  const std::string text =
      "kind\tcolour\tbegin_s\tduration_s\tstep\trank\treplica\tstage\tchunk\n"
      "optimizer\tred\t1e1\t0.5\t7\t4\t0\t0\t-1\n";
  const Result<std::vector<TracedOperation>> operations = parse_operations(text, "there");
  ASSERT_TRUE(operations.ok()) << operations.error().message;
  ASSERT_EQ(operations->size(), 1u);
  EXPECT_EQ(operations->front().kind, TracedKind::optimizer);
  EXPECT_EQ(operations->front().step, 7u);
  EXPECT_EQ(operations->front().rank, 4);
  EXPECT_DOUBLE_EQ(operations->front().end_s, 10.5);
}

TEST(Operations, BadInputIsASentence) {
  const std::string good = "5\t0\t0\t0\t0\toptimizer\t0\t1\n";
  MadeUpTable half{.stages = 2}, uneven{.stages = 2};
  half.add(0, 0, "forward-compute", 0.0, 1.0);
  half.add(0, 0, "forward-send", 1.0, 2.0);
  half.add(0, 1, "forward-compute", 2.0, 3.0);
  uneven.add(0, 1, "forward-compute", 2.0, 3.0);
  for (int i = 0; i < 3; ++i) uneven.add(0, 1, "forward-recv", 0.5 * i, 1.0);
  struct Case {
    std::string text;
    const char* sentence;
  };
  const std::vector<Case> cases = {
      {"", "there has no operation"},
      {header, "there has no operation"},
      {"step\trank\n", "there:1: no column is named replica"},
      {header + "5\t0\n", "there:2: expected 8 columns, as in the first line, got 2"},
      {header + good + "5\t0\t0\t0\t0\tdream\t0\t1\n",
       "there:3: \"dream\" is no kind of operation; known are"},
      {header + "5\tx\t0\t0\t0\toptimizer\t0\t1\n", "there:2: \"x\" is no rank"},
      {header + "5\t0\t0\t-1\t0\toptimizer\t0\t1\n", "there:2: \"-1\" is no stage"},
      {header + "5\t0\t0\t0\t0\toptimizer\tnan\t1\n", "there:2: \"nan\" is no begin_s"},
      {header + "5\t0\t0\t0\t0\toptimizer\t0\t-1\n", "there:2: \"-1\" is no duration_s"},
      {header + good + "5\t1\t0\t0\t0\toptimizer\t0\t1\n",
       "rank 1 is not the only rank of stage 0 of replica 0"},
      {header + good + "5\t0\t1\t0\t0\toptimizer\t0\t1\n",
       "rank 0 is not the only rank of stage 0 of replica 1"},
      {half.text, "the other end of a forward-send of rank 0 in step 5 is missing"},
      {uneven.text, "3 forward-recv were recorded for 1 computations"},
  };
  for (const Case& one : cases) {
    const Result<TracedJob> job = job_of_text(one.text);
    ASSERT_FALSE(job.ok()) << one.sentence;
    EXPECT_EQ(job.error().code, ExitCode::data);
    EXPECT_THAT(job.error().message, HasSubstr(one.sentence));
  }
}

}  // namespace
}  // namespace holdfast::test
