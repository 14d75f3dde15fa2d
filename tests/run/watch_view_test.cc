#include "runtime/run/watch_view.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::Not;

RunSummary watched() {
  RunSummary run{.directory = "runs/a", .own_host = "n0"};
  run.take(Json::parse(R"({"event":"start","time_us":1000000,"run":"abc","ranks":4})"));
  for (int step = 1; step <= 100; ++step) {
    // From step 30 on each takes twice as long.
    const int before = std::min(step, 30), after = step - before;
    run.take(Json::parse(fmt::format(
        R"({{"event":"step","time_us":{},"step":{},"step_duration_ms":{},"loss":2.5,"grad_norm":0.5,"learning_rate":0.001,"tokens_per_sec":100.0,"mfu":0.5}})",
        2000000 + 1000000 * before + 2000000 * after, step, after > 0 ? 2000.0 : 1000.0)));
  }
  run.take(Json::parse(R"({"event":"checkpoint","time_us":150000000,"step":90})"));
  run.take(Json::parse(R"({"event":"failure_cost","time_us":150000001,"step":90,"process_ms":400.0})"));
  run.status.state = "running";
  run.steps = 200;
  run.holder = "host n0 pid 7";
  return run;
}

std::string text_of(const RunSummary& run, const WatchLook& look) {
  return fmt::format("{}\n", fmt::join(watch_lines(run, 173'000'000, look), "\n"));
}

TEST(WatchView, ShowsHowTheRunStands) {
  RunSummary run = watched();
  run.told.push_back(
      {.kind = "fault", .sentence = "lost rank 2", .step = 77, .time_us = 100'000'000, .cause = "rank-died"});
  const std::string text = text_of(run, {});
  EXPECT_THAT(text, HasSubstr("runs/a  running, host n0 pid 7\n"));
  EXPECT_THAT(text,
              HasSubstr("step      100 of 200  [############............] 50.0 %  1 s ago  3m20s left\n"));
  EXPECT_THAT(text,
              HasSubstr("loss 2.5000  gradient norm 0.5  learning rate 0.001  MFU 50.0 %  100 tokens/s\n"));
  EXPECT_THAT(text, HasSubstr("exposed   20s of work in no checkpoint; a failure costs of a process up to "
                              "0.4 s, of a host all, of the job all\n"));
  EXPECT_THAT(text, HasSubstr("\n  00:01:40  step 77      rank-died: lost rank 2\n"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b"))) << "no colors";
  EXPECT_THAT(text_of(run, {.has_colors = true}),
              HasSubstr("\x1b[31m  00:01:40  step 77      rank-died: lost rank 2\x1b[0m\n"));
}

TEST(WatchView, ComparesTheRateWithThatOfTheFirstHour) {
  RunSummary run = watched();
  EXPECT_THAT(text_of(run, {}), HasSubstr("a step takes 2 s, as in the first hour (2 s)"));
  run.early_ms.assign(10, 1600.0);
  EXPECT_THAT(text_of(run, {}), HasSubstr("a step takes 2 s, 25 % slower than in the first hour (1.6 s)"));
  EXPECT_THAT(text_of(run, {.has_colors = true}), HasSubstr("\x1b[31mrate "));
}

TEST(WatchView, ForeignTextIsHarmlessAndLinesAreCut) {
  RunSummary run = watched();
  run.told.push_back({.kind = "fault", .sentence = "a\x1b[2J\tb\xff " + std::string(300, 'x'), .step = 1});
  run.left_out = {{.host = "n1\x1b]0;", .state = "unfit", .reason = "caf\xc3\xa9 " + std::string(300, 'y')}};
  const std::string text = text_of(run, {});
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("a\\x1b[2J b\\xff xxx"));
  for (const int columns : {10, 40, 79}) {
    for (const std::string& line : watch_lines(run, 173'000'000, {.columns = columns})) {
      const auto characters = std::ranges::count_if(line, [](char byte) { return (byte & 0xc0) != 0x80; });
      EXPECT_LE(characters, columns) << line;
    }
  }
  EXPECT_EQ(cut_to("caf\xc3\xa9s", 5), "caf\xc3\xa9s");
  EXPECT_EQ(cut_to("caf\xc3\xa9s!", 5), "caf\xc3\xa9~");
  EXPECT_EQ(cut_to("", 5), "");
}

TEST(WatchView, ManyRanksAreThoseThatWaitTheLongest) {
  RunSummary run = watched();
  for (int rank = 0; rank < 500; ++rank)
    run.here.push_back(
        {.rank = rank, .does = fmt::format("step 101, {}", rank), .waits_seconds = rank == 250 ? 9.0 : 0.1});
  const std::vector<std::string> lines = watch_lines(run, 173'000'000, {.columns = 80, .rows = 20});
  EXPECT_LE(lines.size(), 20U);
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  EXPECT_THAT(text, HasSubstr("\n    250  n0 "));
  EXPECT_THAT(text, HasSubstr("more, which wait for less long"));
  EXPECT_EQ(watch_lines(run, 173'000'000, {.columns = 80, .rows = 3}).size(), 3U);
}

TEST(WatchView, SaysHowARunHasEnded) {
  RunSummary run = watched();
  run.holder.reset();
  EXPECT_THAT(text_of(run, {}), HasSubstr("runs/a  nobody has it: its last start was killed\n"));
  run.status = {.state = "failed", .exit_code = 5, .reason = "the disk is full"};
  EXPECT_THAT(text_of(run, {}), HasSubstr("runs/a  failed: the disk is full\n"));
  EXPECT_THAT(text_of(run, {}), Not(HasSubstr("exposed"))) << "nothing is at stake";
  EXPECT_THAT(text_of(RunSummary{.directory = "runs/b"}, {}), HasSubstr("step      none has been made\n"));
}

}  // namespace
}  // namespace holdfast::test
