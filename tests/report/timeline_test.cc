// What ranks recorded, put together: the files, the clocks, and the steps that are whole.
#include "runtime/report/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/report/made_up_trace.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const MadeUpRun two_stages = {.shape = {.stages = 2, .microbatches_per_lane = 4}};

std::string error_of(const Result<Timeline>& result) {
  return result.ok() ? "" : result.error().message;
}

TEST(TraceFile, ReadsWhatItWrote) {
  RankTrace rank = made_up_ranks(two_stages)[1];
  rank.header.clock = {.offset_ns = -5, .error_ns = 3};
  rank.header.lost = 17;
  rank.spans[1].peer = 0;
  rank.spans[1].bytes = 4096;
  const Result<RankTrace> read = parse_trace(to_text(rank), "there");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(to_text(*read), to_text(rank));
  EXPECT_EQ(read->header.coordinate, rank.header.coordinate);
  EXPECT_EQ(read->header.clock.offset_ns, -5);
  EXPECT_EQ(read->header.lost, 17u);
  ASSERT_EQ(read->spans.size(), rank.spans.size());
  EXPECT_EQ(read->spans[1].bytes, 4096u);
}

TEST(TraceFile, DamageIsASentence) {
  const std::string text = to_text(made_up_ranks(two_stages)[0]);
  const std::size_t second_line = text.find('\n') + 1;
  struct Damage {
    std::string text;
    const char* sentence;
  };
  const std::vector<Damage> damages = {
      {"", "there:1: expected a span, or the last line"},
      {"{}\n", "there:1: expected the line about the rank"},
      {text.substr(0, text.size() - 1), ""},  // the line is whole without its end
      {text.substr(0, text.size() - 4), "or the last line with the number of spans"},
      {text.substr(0, text.rfind('\n', text.size() - 2) + 1), "or the last line with the number of spans"},
      {text.substr(0, second_line) + "{\"kind\":\"dream\"}\n", "there:2: expected a span"},
      {text.substr(0, second_line) + "torn", "there:2: expected a span"},
      {text.substr(second_line), "there:1: expected the line about the rank"},
  };
  for (const Damage& damage : damages) {
    const Result<RankTrace> read = parse_trace(damage.text, "there");
    if (*damage.sentence == '\0') {
      EXPECT_TRUE(read.ok());
      continue;
    }
    ASSERT_FALSE(read.ok()) << damage.sentence;
    EXPECT_EQ(read.error().code, ExitCode::data);
    EXPECT_THAT(read.error().message, HasSubstr(damage.sentence));
  }
}

TEST(MergeRanks, PutsAllTimesOnTheClockOfRankZero) {
  std::vector<RankTrace> ranks = made_up_ranks(two_stages);
  const std::int64_t begin_ns = ranks[1].spans.front().begin.time_ns;
  ranks[1].header.clock = {.offset_ns = 250, .error_ns = 40};
  const Result<Timeline> timeline = merge_ranks(ranks);
  ASSERT_TRUE(timeline.ok()) << timeline.error().message;
  EXPECT_THAT(timeline->steps, ElementsAre(7, 8));
  EXPECT_EQ(timeline->ranks[1].spans.front().begin.time_ns, begin_ns + 250);
  EXPECT_EQ(timeline->clock_error_ns, 40);
}

TEST(MergeRanks, LeavesOutWhatIsNotWhole) {
  std::vector<RankTrace> ranks = made_up_ranks(two_stages);
  for (Span& span : ranks[0].spans) {  // the run ended in step 8
    if (span.kind == SpanKind::step && span.step == 8) span.end = {};
  }
  const Result<Timeline> timeline = merge_ranks(ranks);
  ASSERT_TRUE(timeline.ok());
  EXPECT_THAT(timeline->steps, ElementsAre(7));
  for (const RankTrace& rank : timeline->ranks) {
    EXPECT_FALSE(rank.spans.empty());
    for (const Span& span : rank.spans) EXPECT_EQ(span.step, 7u);
  }
  for (RankTrace& rank : ranks) std::erase_if(rank.spans, [](const Span& span) { return span.step == 7; });
  EXPECT_THAT(error_of(merge_ranks(ranks)), HasSubstr("no step was recorded whole"));
}

TEST(MergeRanks, RefusesFilesOfDifferentRecordings) {
  std::vector<RankTrace> ranks = made_up_ranks(two_stages);
  ranks[1].header.recording = "00fe";
  EXPECT_THAT(error_of(merge_ranks(ranks)), HasSubstr("rank 1"));
  ranks = made_up_ranks(two_stages);
  ranks[1].header.rank = 0;
  EXPECT_THAT(error_of(merge_ranks(ranks)), HasSubstr("another recording"));
}

TEST(SelectSteps, TakesARangeOrOneStep) {
  for (const char* bad : {"", "0", "x", "3..", "..3", "3-5", "3..x", "-1"}) {
    EXPECT_FALSE(parse_step_range(bad).ok()) << bad;
  }
  EXPECT_THAT(parse_step_range("5..3").error().message, HasSubstr("write 3..5"));
  const Timeline timeline = merge_ranks(made_up_ranks(two_stages)).value();
  EXPECT_THAT(select_steps(timeline, parse_step_range("8").value())->steps, ElementsAre(8));
  EXPECT_THAT(select_steps(timeline, parse_step_range("1..7").value())->steps, ElementsAre(7));
  const Result<Timeline> none = select_steps(timeline, parse_step_range("9..12").value());
  EXPECT_THAT(error_of(none), HasSubstr("the trace has steps 7 to 8"));
}

TEST(ReadTimeline, SaysWhatIsMissing) {
  const TemporaryDirectory directory;
  const RunPaths paths{directory.path()};
  EXPECT_THAT(error_of(read_timeline(posix_env(), paths)), HasSubstr("--trace.steps=3"));
  const std::vector<RankTrace> ranks = made_up_ranks(two_stages);
  ASSERT_TRUE(posix_env().make_directories(paths.trace()).ok());
  ASSERT_TRUE(posix_env().replace_text(paths.trace(0), to_text(ranks[0])).ok());
  EXPECT_THAT(error_of(read_timeline(posix_env(), paths)), HasSubstr("rank-00001.jsonl is missing"));
  ASSERT_TRUE(posix_env().replace_text(paths.trace(1), to_text(ranks[1])).ok());
  const Result<Timeline> timeline = read_timeline(posix_env(), paths);
  ASSERT_TRUE(timeline.ok()) << timeline.error().message;
  EXPECT_EQ(timeline->ranks.size(), 2u);
}

}  // namespace
}  // namespace holdfast::test
