#include "tools/chaos/cost_promise.h"
#include "runtime/core/json.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/run/event_reading.h"
#include "tests/chaos/second.h"
#include "tools/chaos/chaos_report.h"
#include "tools/chaos/chaos_summary.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Log of a run whose steps take a second each.
class Log {
 public:
  Log& start(int from) {
    add("start", fmt::format(R"("resumed_from_step":{})", from));
    step_ = from;
    return *this;
  }
  Log& steps(int count, double duration_ms = 1000.0) {
    for (int i = 0; i < count; ++i) {
      now_us_ += static_cast<std::int64_t>(duration_ms * 1e3);
      add("step", fmt::format(R"("step":{},"step_duration_ms":{})", ++step_, duration_ms));
    }
    return *this;
  }
  Log& promise(const char* figures) {
    add("failure_cost", figures);
    return *this;
  }
  // Adds what the next writer says, a while later, of so many steps whose lines have died with the writer before.
  Log& gap(int steps) {
    now_us_ += 60 * second;
    add("gap", fmt::format(R"("first_step":{},"last_step":{})", step_ + 1, step_ + steps));
    step_ += steps;
    return *this;
  }
  // Adds a fault that is noticed so long after the newest step.
  Log& fault(double after_ms, const char* more = R"("what":"rank")") {
    now_us_ += static_cast<std::int64_t>(after_ms * 1e3);
    add("fault", fmt::format(R"("step":{},{})", step_, more));
    return *this;
  }
  Log& from(int step) {
    step_ = step;
    return *this;
  }
  Log& finish(const char* state) {
    add("finish", fmt::format(R"("state":"{}")", state));
    return *this;
  }

  std::vector<WorkLoss> losses() const {
    WorkLossReader reader;
    for_each_event(text_, [&](const Json& event) { reader.read(event); });
    return std::move(reader).finish();
  }
  std::int64_t now_us() const { return now_us_; }

 private:
  void add(const char* name, const std::string& fields) {
    text_ += fmt::format(R"({{"event":"{}","time_us":{},{}}})", name, now_us_, fields) + "\n";
  }
  std::string text_;
  std::int64_t now_us_ = 1000 * second;
  int step_ = 0;
};

constexpr const char* figures = R"("process_ms":4000,"host_ms":20000,"job_ms":30000)";

ChaosRun run_of(const Log& log, std::vector<ChaosInjected> injected = {}) {
  ChaosRun run;
  run.plan.seed = 7;
  run.losses = log.losses();
  run.injected = std::move(injected);
  return run;
}

TEST(WorkLoss, InPlace) {
  const Log log = Log().start(0).steps(10).promise(figures).fault(400).from(8).steps(3);
  const std::vector<WorkLoss> losses = log.losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].steps, 2u);
  EXPECT_DOUBLE_EQ(losses[0].step_ms, 1000.0);
  EXPECT_DOUBLE_EQ(losses[0].unfinished_ms, 400.0);
  EXPECT_DOUBLE_EQ(losses[0].lost_ms(), 2400.0);
  ASSERT_TRUE(losses[0].reported.has_value());
  EXPECT_DOUBLE_EQ(*losses[0].reported->process_ms, 4000.0);
}

TEST(WorkLoss, OfAStepThatHangsOneStepCounts) {
  const std::vector<WorkLoss> losses = Log().start(0).steps(10).fault(60'000).from(10).steps(1).losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].steps, 0u);
  EXPECT_DOUBLE_EQ(losses[0].lost_ms(), 1000.0);
  EXPECT_FALSE(losses[0].reported.has_value());
}

TEST(WorkLoss, ABusyMomentIsNoWork) {
  const Log log = Log().start(0).steps(8).steps(1, 50'000.0).fault(0).from(6).steps(1);
  EXPECT_DOUBLE_EQ(log.losses().at(0).lost_ms(), 3000.0);
}

// The first steps of an epoch touch their memory for the first time.
TEST(WorkLoss, SoonAfterALossTheStepsBeforeItCount) {
  const std::vector<WorkLoss> losses =
      Log().start(0).steps(10).fault(0).from(9).steps(2, 30'000.0).fault(0).from(9).steps(1).losses();
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[1].steps, 2u);
  EXPECT_DOUBLE_EQ(losses[1].step_ms, 1000.0);
}

TEST(WorkLoss, SeveralDeathsBeforeTheNextStepAreOneLoss) {
  const Log log = Log().start(0).steps(10).promise(figures).fault(0).fault(100).finish("failed").fault(
      50, R"("level":2)");
  Log again = log;
  const std::vector<WorkLoss> losses = again.start(7).steps(1).losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].steps, 3u);
  EXPECT_TRUE(losses[0].reported.has_value()) << "by the start that ended";
}

TEST(WorkLoss, AStartThatEndedSilently) {
  const std::vector<WorkLoss> losses = Log().start(0).steps(10).start(6).steps(1).losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].steps, 4u);
}

TEST(WorkLoss, StepsWhoseLinesAreLostAreNotComputedAgain) {
  const std::vector<WorkLoss> losses =
      Log().start(0).steps(10).from(14).fault(0).from(10).gap(2).steps(1).losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].steps, 2u) << "13 and 14, of which there is no line";
}

TEST(WorkLoss, WhatTheNextWriterSaysIsNotTheLastWordOfAStartThatEndedSilently) {
  const Log log = Log().start(0).steps(10);
  const std::vector<WorkLoss> losses = Log(log).gap(2).start(12).steps(1).losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].noticed_us, log.now_us());
  EXPECT_EQ(losses[0].steps, 0u);
}

TEST(WorkLoss, AStopAndASaveThatFailedAreNone) {
  EXPECT_TRUE(Log().start(0).steps(5).finish("saved").start(5).steps(2).losses().empty());
  EXPECT_TRUE(Log().start(0).steps(5).fault(0, R"("what":"save")").steps(2).losses().empty());
}

TEST(CostPromise, EachPartHasItsFigure) {
  const auto check = [](ChaosFault fault, int from) {
    const Log before = Log().start(0).steps(40).promise(figures).fault(100);
    Log log = before;
    log.from(from).steps(1);
    return check_losses(run_of(log, {{.fault = fault, .time_us = before.now_us() - 1}})).at(0);
  };
  EXPECT_TRUE(check(ChaosFault::kill, 36).held());
  EXPECT_TRUE(check(ChaosFault::all_killed, 36).held()) << "their host's memory is left";
  const CheckedLoss broken = check(ChaosFault::job_killed, 30);
  EXPECT_FALSE(broken.held());
  EXPECT_EQ(to_text(broken), "a lost process cost 10.1 s of work (10 steps again), and 4 s were promised");
  EXPECT_TRUE(check(ChaosFault::lost_host, 21).held());
  EXPECT_FALSE(check(ChaosFault::cut_link, 12).held());
  EXPECT_TRUE(check(ChaosFault::host_killed, 21).held());
  EXPECT_TRUE(check(ChaosFault::ram_lost, 11).held());
  EXPECT_FALSE(check(ChaosFault::ram_lost, 1).held());
  EXPECT_EQ(check(ChaosFault::damaged_checkpoint, 1).no_promise, NoPromise::damaged);
  EXPECT_EQ(check(ChaosFault::full_disk, 1).no_promise, NoPromise::no_disk);
}

TEST(CostPromise, WhatWasNotPromised) {
  const ChaosRun early = run_of(Log().start(0).steps(3).fault(0).from(0).steps(1));
  EXPECT_EQ(check_losses(early).at(0).no_promise, NoPromise::said_nothing);
  const ChaosRun next_start =
      run_of(Log().start(0).steps(9).promise(figures).fault(0).start(9).steps(5).fault(0).from(9).steps(1));
  EXPECT_FALSE(check_losses(next_start).at(0).no_promise.has_value());
  EXPECT_EQ(check_losses(next_start).at(1).no_promise, NoPromise::said_nothing);
  const Log unbounded = Log().start(0).steps(9).promise(R"("process_ms":4000)").fault(0).from(0).steps(1);
  const ChaosRun run = run_of(unbounded, {{.fault = ChaosFault::ram_lost, .time_us = second}});
  EXPECT_EQ(check_losses(run).at(0).no_promise, NoPromise::all_work);
}

TEST(CostPromise, TheReportSaysIt) {
  std::vector<ChaosRun> runs = {
      run_of(Log().start(0).steps(10).promise(figures).fault(400).from(8).steps(3)),
      run_of(Log().start(0).steps(2).fault(0).from(0).steps(1)),
  };
  EXPECT_THAT(to_text(summarize(runs)),
              HasSubstr("\n\nthe cost promise held in 1 of 1 death; worst: 2.4 s of 4 s promised (a lost "
                        "process, seed 7); 1 more had no promise\n"));
  EXPECT_THAT(chaos_html({}, runs, summarize(runs)), Not(HasSubstr("more was lost")));
  runs.push_back(run_of(Log().start(0).steps(30).promise(figures).fault(0).from(10).steps(3)));
  runs.back().plan.seed = 9;
  const ChaosSummary summary = summarize(runs);
  EXPECT_EQ(summary.right, 3) << "it says nothing about the bits";
  EXPECT_THAT(to_text(summary), HasSubstr("held in 1 of 2 deaths; worst: 20 s of 4 s promised"));
  EXPECT_THAT(chaos_html({}, runs, summary), HasSubstr("more was lost than promised: a lost process cost"));
  const Json json = Json::parse(chaos_json({}, runs, summary));
  EXPECT_EQ(json["cost_promise"]["deaths"], 3);
  EXPECT_EQ(json["cost_promise"]["promised"], 2);
  EXPECT_EQ(json["cost_promise"]["held"], 1);
  EXPECT_EQ(json["cost_promise"]["worst"]["seed"], 9);
  EXPECT_EQ(json["each"][2]["losses"][0]["held"], false);
  EXPECT_EQ(json["each"][1]["losses"][0]["no_promise"], "the start had not said yet what a failure costs");
}

}  // namespace
}  // namespace holdfast::test
