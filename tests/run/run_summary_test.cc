// How a run stands, by its events and the slots of a board.
#include "runtime/run/run_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::Not;

RunSummary standing(std::initializer_list<const char*> events) {
  RunSummary run{.directory = "runs/a"};
  for (const char* event : events) run.take(Json::parse(event));
  return run;
}

TEST(RunSummary, IsWhatTheNewestEventsSay) {
  RunSummary run = standing({
      R"({"event":"start","time_us":1000000,"run":"abc","ranks":6,"generation":2,"hosts":{"n0":2,"n1":4}})",
      R"({"event":"step","time_us":2000000,"step":7,"loss":3.5,"tokens_per_sec":1200.0})",
      R"({"event":"checkpoint","time_us":2500000,"step":5})",
      R"({"event":"snapshot","time_us":2600000,"step":6})",
      R"({"event":"failure_cost","time_us":2700000,"step":7,"process_ms":400.0})",
      R"({"event":"step","time_us":2900000,"step":7,"loss":3.5,"tokens_per_sec":1200.0,"recomputed":true})",
      R"({"event":"recovery","time_us":3000000,"ranks_after":5,"lost_steps":1,"hosts":{"n0":2,"n1":3}})",
      R"({"event":"step","time_us":4000000,"step":8,"loss":3.25,"tokens_per_sec":1000.0})",
      R"({"event":"something new","time_us":4000001})",
      R"({"event":1,"step":[]})",
      R"({"step":"none"})",
  });
  run.steps = 20;
  run.holder = "host n0 pid 12";
  run.left_out = {{.host = "n2",
                   .state = "unfit",
                   .reason = "no data",
                   .since_us = 4'000'000,
                   .until_us = 25'500'000,
                   .failures = 1}};
  const std::string text = to_text(run, 5'500'000);
  EXPECT_THAT(text, HasSubstr("runs/a  held by host n0 pid 12\n"));
  EXPECT_THAT(text, HasSubstr("step      8 of 20, loss 3.2500, 1000 tokens/s, 1.5"));
  EXPECT_THAT(text, HasSubstr("ranks     5 (n0 2, n1 3)\n"));
  EXPECT_THAT(text,
              HasSubstr("left out  n2 unfit since 1970-01-01 00:00:04 UTC, for another 20 s: no data\n"));
  EXPECT_THAT(text, HasSubstr("on disk   step 5, 3"));
  EXPECT_THAT(text, HasSubstr("in RAM    step 6, 2.9"));
  EXPECT_THAT(text, HasSubstr("of a host all of its work"));
  EXPECT_THAT(text, HasSubstr("1 start, 1 recovery, 1 step computed again"));

  const Json json = to_json(run);
  EXPECT_EQ(json["step"].get<int>(), 8);
  EXPECT_EQ(json["hosts"]["n1"].get<int>(), 3);
  EXPECT_EQ(json["left_out"]["n2"]["reason"].get<std::string>(), "no data");
  EXPECT_EQ(json["checkpoint"]["step"].get<int>(), 5);
  EXPECT_TRUE(json["failure_cost"].contains("process_ms"));
  EXPECT_FALSE(json["failure_cost"].contains("job_ms")) << "all of it would be lost";
  EXPECT_TRUE(json["running"].get<bool>());
}

TEST(RunSummary, HasNumbersForPrograms) {
  RunSummary run = standing({
      R"({"event":"start","time_us":1000000,"run":"abc","ranks":2,"join_ms":500.0})",
      R"({"event":"step","time_us":2000000,"step":1,"step_duration_ms":1000.0,"loss":4.0})",
      R"({"event":"step","time_us":4000000,"step":2,"step_duration_ms":1000.0,"loss":3.5,"grad_norm":0.75,)"
      R"("learning_rate":0.0005,"tokens":2048,"mfu":0.25,"compute_ms":700.0,"waited_ms":200.0,"data_ms":100.0,)"
      R"("save_ms":600.0})",
      R"({"event":"fault","time_us":4100000,"step":2,"what":"save","reason":"the disk\nis full"})",
  });
  run.steps = 12;
  run.holder = "host n0 pid 12";
  run.free_bytes = 1U << 30U;
  run.times = {{.rank = 1, .host = "n1", .own_ms = 50.0, .waited_ms = 350.0}};
  const SlotView slot{.launched_rank = 1,
                      .phase = Phase::step,
                      .step = 3,
                      .begun_ns = 1'000'000'000,
                      .wait_begun_ns = 1'250'000'000,
                      .wait_peer = 0,
                      .wait_operation = "all_reduce"};
  run.here = {rank_of(slot, 1'500'000'000)};
  const Json json = to_json(run);
  EXPECT_EQ(json["grad_norm"].get<double>(), 0.75);
  EXPECT_EQ(json["learning_rate"].get<double>(), 0.0005);
  EXPECT_EQ(json["mfu"].get<double>(), 0.25);
  EXPECT_EQ(json["tokens"].get<int>(), 2048);
  EXPECT_EQ(json["free_bytes"].get<int>(), 1 << 30);
  EXPECT_DOUBLE_EQ(json["seconds_left"].get<double>(), 20.0) << "ten steps, of which each took two seconds";
  EXPECT_DOUBLE_EQ(json["seconds"]["training"].get<double>(), 1.9) << "without the wait for data";
  EXPECT_DOUBLE_EQ(json["seconds"]["waiting for data"].get<double>(), 0.1);
  EXPECT_DOUBLE_EQ(json["seconds"]["saving"].get<double>(), 0.6);
  EXPECT_DOUBLE_EQ(json["seconds"]["between steps"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(json["goodput"].get<double>(), 1.9 / 3.6);
  EXPECT_EQ(json["ranks_here"]["1"]["phase"].get<std::string>(), "step");
  EXPECT_DOUBLE_EQ(json["ranks_here"]["1"]["phase_seconds"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(json["ranks_here"]["1"]["waits_seconds"].get<double>(), 0.25);
  EXPECT_EQ(json["ranks_here"]["1"]["waits_for"].get<int>(), 0);
  EXPECT_EQ(json["rank_times"]["1"]["host"].get<std::string>(), "n1");
  EXPECT_EQ(json["rank_times"]["1"]["waited_ms"].get<double>(), 350.0);
  const std::string text = to_text(run, 4'200'000);
  EXPECT_THAT(text,
              HasSubstr("\nrates     MFU 25.0 %, gradient norm 0.75, learning rate 0.0005, 20s left\n"));
  EXPECT_THAT(text, HasSubstr("\ntime      goodput 52.8 %: training 1.9 s, start-up 0.5 s, between steps"));
  EXPECT_THAT(text, HasSubstr("\ndisk      1.00 GiB free"));
  ASSERT_EQ(run.told.size(), 1U);
  EXPECT_EQ(run.told[0].sentence, "save failed: the disk is full");
  run.holder.reset();
  EXPECT_FALSE(to_json(run).contains("seconds_left")) << "nobody makes steps";
}

TEST(RunSummary, SaysWhatWasUsedOfEachSource) {
  RunSummary run = standing({
      R"({"event":"start","time_us":1000000,"ranks":2,"sources":[{"path":"a.txt","samples":100,"weight":3.0},)"
      R"({"path":"b.bin","samples":10,"weight":1.0}]})",
      R"({"event":"step","time_us":2000000,"step":1,"tokens":320,"source_samples":[15,5]})",
      R"({"event":"step","time_us":3000000,"step":2,"tokens":640,"source_samples":[29,11]})",
  });
  EXPECT_THAT(to_text(run, 3'500'000), HasSubstr("\nsource    a.txt: 29 samples, 464 tokens, 0.29 epochs\n"
                                                 "source    b.bin: 11 samples, 176 tokens, 1.10 epochs\n"));
  EXPECT_EQ(to_json(run)["sources"].dump(), R"([{"path":"a.txt","samples":29,"tokens":464,"epochs":0.29},)"
                                            R"({"path":"b.bin","samples":11,"tokens":176,"epochs":1.1}])");
  run.take(Json::parse(R"({"event":"step","time_us":4000000,"step":3,"tokens":960})"));
  EXPECT_THAT(to_text(run, 4'500'000), Not(HasSubstr("source "))) << "it is not known any more";
  EXPECT_FALSE(to_json(run).contains("sources"));
}

TEST(RunSummary, ARunThatNobodyHasSaysHowItEnded) {
  RunSummary run = standing({R"({"event":"start","time_us":1,"ranks":1})"});
  run.status.state = "running";
  EXPECT_THAT(to_text(run, 2), HasSubstr("not running: its last start was killed; it has no checkpoint"));
  run.take(Json::parse(R"({"event":"checkpoint","time_us":1,"step":100})"));
  EXPECT_THAT(to_text(run, 2), HasSubstr("killed; its newest checkpoint is of step 100\n"));
  run.status = {.state = "failed", .step = 3, .exit_code = 5, .reason = "the disk is full"};
  EXPECT_THAT(to_text(run, 2), HasSubstr("failed with exit code 5: the disk is full"));
  EXPECT_THAT(to_text(run, 2), Not(HasSubstr("a failure now costs")));
  EXPECT_FALSE(to_json(run)["running"].get<bool>());
}

TEST(RunSummary, ASkippedStepHasNoLoss) {
  RunSummary run = standing({
      R"({"event":"start","time_us":1000000,"ranks":2})",
      R"({"event":"step","time_us":2000000,"step":20,"loss":3.5,"tokens_per_sec":1200.0})",
      R"({"event":"step","time_us":3000000,"step":21,"loss":null,"grad_norm":null,"tokens_per_sec":1000.0})",
  });
  EXPECT_THAT(to_text(run, 3'500'000), HasSubstr("step      21, no finite loss, 1000 tokens/s, 0.5"));
  EXPECT_THAT(to_text(run, 3'500'000), Not(HasSubstr("numbers ")));
  EXPECT_FALSE(to_json(run).contains("loss"));
  EXPECT_FALSE(to_json(run).contains("numbers"));
}

TEST(RunSummary, SaysWhichNumbersWereWrong) {
  const RunSummary run = standing({
      R"({"event":"verdict","time_us":2,"step":21,"kind":"nonfinite","action":"skip","of":"loss","attempts":2})",
      R"({"event":"verdict","time_us":3,"step":20,"kind":"corruption","action":"evict","of":"grad_norm","attempts":2,"rank":1,"host":"a"})",
  });
  EXPECT_THAT(to_text(run, 4),
              HasSubstr("\nnumbers   1 step skipped (21), hardware of rank 1 (host a) computed "
                        "wrong numbers at step 20, evicted at step 20\n"));
  const Json numbers = to_json(run)["numbers"];
  EXPECT_EQ(numbers["verdicts"].get<int>(), 2);
  EXPECT_EQ(numbers["compared_steps"].get<int>(), 2);
  EXPECT_EQ(numbers["skipped_steps"].dump(), "[21]");
  EXPECT_EQ(
      numbers["hardware"].dump(),
      R"([{"host":"a","rank":1,"computed_steps":[20],"memory_steps":[],"link_steps":[],"evicted_steps":[20]}])");
}

TEST(RunSummary, WhoMayNotLookAtTheLockLearnsThat) {
  RunSummary run = standing({R"({"event":"start","time_us":1,"ranks":1})"});
  run.status.state = "running";
  run.holder_unknown = "whether somebody has the run cannot be told: why";
  EXPECT_THAT(to_text(run, 2), HasSubstr("whether somebody has the run cannot be told: why"));
  EXPECT_FALSE(to_json(run).contains("running"));
}

TEST(RunSummary, WhatARankIsAt) {
  SlotView slot{.launched_rank = 1, .phase = Phase::step, .step = 12, .begun_ns = 1'000'000'000};
  EXPECT_EQ(activity_of(slot, 1'500'000'000), "step 12 for 0.5 s");
  slot.wait_begun_ns = 1'200'000'000;
  slot.wait_peer = 3;
  slot.wait_operation = "all_reduce";
  EXPECT_EQ(activity_of(slot, 1'500'000'000), "step 12 for 0.5 s, waits 0.3 s for rank 3 in all_reduce");
  slot.storage_begun_ns = 1'400'000'000;
  slot.storage_what = "the lock";
  slot.drain_begun_ns = 1;
  slot.drain_step = 10;
  EXPECT_THAT(activity_of(slot, 1'500'000'000),
              HasSubstr("for the file system (the lock), saves step 10 in the background"));
}

}  // namespace
}  // namespace holdfast::test
