// Tests what the timeline is written as: a trace for viewers, and lines on the console.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "runtime/core/json.h"
#include "runtime/report/timeline_output.h"
#include "tests/report/made_up_trace.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Two stages with the messages of two microbatches in step 7; the second is sent before the first has
// arrived.
std::vector<RankTrace> ranks_with_messages() {
  std::vector<RankTrace> ranks = made_up_ranks({.shape = {.stages = 2, .microbatches_per_lane = 2}});
  for (int i = 0; i < 2; ++i) {
    Span sent = span_at(SpanKind::send_activation, 7, 7'001'000 + 1000 * i, 7'002'500 + 1000 * i);
    Span received = span_at(SpanKind::receive_activation, 7, 6'999'950, 7'002'400 + 1000 * i);
    sent.microbatch = received.microbatch = i;
    sent.bytes = received.bytes = 64;
    sent.peer = 1;
    received.peer = 0;
    ranks[0].spans.push_back(sent);
    ranks[1].spans.push_back(received);
  }
  return ranks;
}

TEST(Transfers, MatchInTheOrderInWhichTheyWereSent) {
  const std::vector<Transfer> transfers = transfers_of(merge_ranks(ranks_with_messages()).value(), 7);
  ASSERT_EQ(transfers.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const Transfer& transfer = transfers[static_cast<std::size_t>(i)];
    EXPECT_EQ(transfer.sent.microbatch, i);
    EXPECT_EQ(transfer.received.microbatch, i);
    EXPECT_EQ(transfer.duration_ns(), 1400);
  }
}

TEST(ChromeTrace, HasASpanForEverythingAndNoneCrossesAnother) {
  const Timeline timeline = merge_ranks(ranks_with_messages()).value();
  const Json trace = Json::parse(chrome_trace(timeline));
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> threads;
  std::map<std::string, int> phases;
  std::set<int> named;
  for (const Json& event : trace["traceEvents"]) {
    ++phases[event["ph"]];
    if (event["ph"] == "M" && event["name"] == "process_name") named.insert(event["pid"].get<int>());
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["ts"].get<double>(), 0.0);
    threads[{event["pid"], event["tid"]}].emplace_back(
        event["ts"], event["ts"].get<double>() + event["dur"].get<double>());
  }
  std::size_t spans = 0;
  for (const RankTrace& rank : timeline.ranks) spans += rank.spans.size();
  EXPECT_EQ(phases["X"], static_cast<int>(spans));
  EXPECT_EQ(phases["s"], 2);
  EXPECT_EQ(phases["f"], 2);
  EXPECT_EQ(named, (std::set<int>{0, 1}));
  for (const auto& [thread, intervals] : threads) {
    for (const auto& a : intervals) {
      for (const auto& b : intervals) {
        const bool crosses = a.first < b.first && b.first < a.second - 1e-9 && a.second < b.second - 1e-9;
        EXPECT_FALSE(crosses) << "rank " << thread.first << " thread " << thread.second;
      }
    }
  }
}

TEST(TimelineSummary, NamesTheBubbleBesideTheFormula) {
  const Timeline timeline = merge_ranks(ranks_with_messages()).value();
  const std::string text = timeline_summary(timeline, analyse(timeline));
  EXPECT_THAT(text, HasSubstr("steps 7 to 8 of 2 ranks x 1 thread: 1f1b in 2 stages, 2 microbatches; cpu"));
  EXPECT_THAT(text, HasSubstr("measured 33.3 %, replayed with the measured parts 33.3 %, formula 33.3 %"));
  EXPECT_THAT(text, HasSubstr("vote"));
  EXPECT_THAT(text, Not(HasSubstr("parameters")));
}

}  // namespace
}  // namespace holdfast::test
