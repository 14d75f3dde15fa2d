// The verdicts of a run, put together from lines of its event log.
#include "runtime/run/numbers_log.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/run/event_log.h"
#include "runtime/run/event_reading.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A log in the making, of lines as the run writes them.
class VerdictLines {
 public:
  VerdictLines& start(std::uint64_t resumed_from) {
    return add(StartEvent{.resumed_from_step = {resumed_from}});
  }
  VerdictLines& verdict(const VerdictEvent& event) { return add(event); }
  VerdictLines& hardware(std::uint64_t step, const char* of, int rank, const char* host) {
    return add(VerdictEvent{
        .step = step, .what = "corruption", .action = "evict", .of = of, .rank = rank, .host = host});
  }
  VerdictLines& line(const char* text) {
    numbers_.take(Json::parse_any(text));
    return *this;
  }
  const NumbersLog& numbers() const { return numbers_; }

 private:
  VerdictLines& add(const Event auto& event) {
    EventLine line;
    numbers_.take(Json::parse(put_event(event, line).end()));
    return *this;
  }
  NumbersLog numbers_;
};

VerdictEvent skipped_step(std::uint64_t step) {
  return {.step = step, .what = "nonfinite", .action = "skip", .of = "loss", .attempts = 2};
}

TEST(NumbersLog, ARunWithoutVerdictsHasNone) {
  VerdictLines log;
  log.start(0).line(R"({"event":"step","step":1,"loss":null})").line("torn").line("[1]");
  EXPECT_THAT(log.numbers().verdicts, IsEmpty());
  EXPECT_EQ(summary_of(log.numbers()), "");
  EXPECT_THAT(log.numbers().hardware(), IsEmpty());
}

TEST(NumbersLog, SaysWhatWasSkippedAndWhichHardwareWasWrong) {
  VerdictLines log;
  log.verdict(skipped_step(21)).hardware(20, "grad_norm", 1, "a");
  EXPECT_EQ(
      summary_of(log.numbers()),
      "1 step skipped (21), hardware of rank 1 (host a) computed wrong numbers at step 20, evicted at step "
      "20");
  EXPECT_EQ(log.numbers().compared_steps(), 1U);
}

TEST(NumbersLog, CountsHardwareByHostAndRank) {
  VerdictLines log;
  log.hardware(30, "loss", 1, "b").hardware(20, "grad_norm", 1, "b").hardware(25, "state", 1, "b");
  log.hardware(40, "state", 0, "a")
      .verdict({.step = 9, .what = "corruption", .action = "redo", .of = "loss"})
      .verdict({.step = 12, .what = "corruption", .action = "redo", .of = "links"})
      .hardware(35, "links", 1, "b");
  const std::vector<SuspectHardware> records = log.numbers().hardware();
  ASSERT_EQ(records.size(), 3U);
  EXPECT_FALSE(records[0].rank.has_value());
  EXPECT_EQ(records[1].host, "a");
  EXPECT_EQ(records[2].host, "b");
  EXPECT_EQ(records[2].findings(), 4U);
  EXPECT_THAT(records[2].computed_steps, ElementsAre(20, 30));
  EXPECT_THAT(records[2].memory_steps, ElementsAre(25));
  EXPECT_THAT(records[2].link_steps, ElementsAre(35));
  EXPECT_EQ(
      summary_of(log.numbers()),
      "hardware: some rank computed wrong numbers at step 9, links between ranks changed gradients at "
      "step 12, memory of rank 0 (host a) changed by itself "
      "at step 40, evicted at step 40, hardware of rank 1 (host b) computed wrong numbers at steps 20, 30, "
      "memory of rank 1 (host b) changed by itself at step 25, links of rank 1 (host b) changed gradients at "
      "step "
      "35, evicted at steps 20, 25, 30, 35");
}

// A recovery computes steps again and judges them as before; another future of the run judges others.
TEST(NumbersLog, AStepCountsOnceAndHardwareAlways) {
  VerdictLines log;
  log.verdict(skipped_step(21))
      .verdict(skipped_step(24))
      .hardware(23, "state", 1, "a")
      .verdict(skipped_step(21));
  EXPECT_THAT(log.numbers().steps_with("skip"), ElementsAre(21, 24));
  log.start(22);
  EXPECT_THAT(log.numbers().steps_with("skip"), ElementsAre(21)) << "24 is of a future that was discarded";
  EXPECT_EQ(log.numbers().hardware().size(), 1U);
  log.hardware(23, "state", 1, "a");
  EXPECT_EQ(log.numbers().hardware()[0].findings(), 2U);
  log.line(R"({"event":"start","resumed_from_step":null})");
  EXPECT_THAT(log.numbers().steps_with("skip"), IsEmpty());
  EXPECT_EQ(log.numbers().verdicts.size(), 2U);
}

// The steps behind the one that it goes back to come again, with other data; why they do stays known.
TEST(NumbersLog, ARollbackForgetsWhatComesAgain) {
  const VerdictEvent rollback{
      .step = 41, .what = "spike", .action = "rollback", .of = "loss", .attempts = 2, .back_to_step = 35};
  VerdictLines log;
  log.verdict(skipped_step(30))
      .verdict(skipped_step(38))
      .verdict(rollback)
      .verdict(skipped_step(41))
      .start(36);
  EXPECT_EQ(summary_of(log.numbers()), "1 step skipped (30), went back from step 41");
}

TEST(NumbersLog, SaysWhatBecameOfAllOtherSteps) {
  VerdictLines log;
  log.verdict({.step = 64, .what = "drift", .action = "none"});
  log.verdict({.step = 70, .what = "spike", .action = "redo", .attempts = 2});
  log.verdict({.step = 71, .what = "spike", .action = "redo", .attempts = 2});
  log.verdict({.step = 75, .what = "spike", .action = "clip", .attempts = 2});
  log.verdict({.step = 80, .what = "nonfinite", .action = "stop", .attempts = 2});
  EXPECT_EQ(summary_of(log.numbers()),
            "1 step clipped (75), 1 step judged drift and kept (64), 2 steps judged spike and kept (70, 71), "
            "ended by the numbers of step 80");
  EXPECT_EQ(log.numbers().compared_steps(), 4U);
}

TEST(NumbersLog, SaysThatARunWasSavedAndEnded) {
  VerdictLines log;
  log.verdict({.step = 9, .what = "exploded", .action = "skip", .attempts = 2});
  log.verdict({.step = 64, .what = "drift", .action = "save_and_stop", .attempts = 1});
  EXPECT_EQ(summary_of(log.numbers()), "1 step skipped (9), ended by the numbers of step 64");
}

TEST(NumbersLog, ListsFewSteps) {
  EXPECT_EQ(list_of({}), "");
  EXPECT_EQ(list_of({1, 2, 3, 4, 5, 6, 7, 8}), "1, 2, 3, 4, 5, 6, 7, 8");
  EXPECT_EQ(list_of({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), "1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
}

TEST(NumbersLog, TakesForeignFields) {
  VerdictLines log;
  log.line(R"({"event":"verdict"})").line(R"({"event":"verdict","step":"x","kind":7,"rank":-1,"host":null})");
  log.line(R"({"event":"verdict","step":4,"kind":"new","action":"other"})");
  EXPECT_EQ(log.numbers().verdicts.size(), 2U);
  EXPECT_EQ(summary_of(log.numbers()), "");
}

}  // namespace
}  // namespace holdfast::test
