// Tests what the report shows of verdicts: a card, marks on curves, interrupted lines.
#include "runtime/report/report_sections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/report/report.h"
#include "runtime/run/event_log.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

VerdictEvent skip_shown() {
  return {.step = 21,
          .what = "nonfinite",
          .action = "skip",
          .of = "loss",
          .attempts = 2,
          .lane = 1,
          .microbatch = 0,
          .reason = "step 21: <the loss> is nan"};
}
VerdictEvent eviction_shown() {
  return {.step = 60,
          .what = "corruption",
          .action = "evict",
          .of = "state",
          .rank = 1,
          .host = "a&b",
          .reason = "step 60: memory"};
}

class NumbersReportTest : public testing::Test {
 protected:
  void write(const Event auto& event) {
    EventLine line;
    lines_ += put_event(event, line).end();
    lines_ += '\n';
  }
  // Steps from `first` to `last`; that of a skipped step has no numbers.
  void steps(std::uint64_t first, std::uint64_t last, double loss) {
    for (std::uint64_t step = first; step <= last; ++step) {
      write(StepEvent{.time_us = static_cast<std::int64_t>(step) * 1'000'000,
                      .step = step,
                      .loss = loss,
                      .grad_norm = loss,
                      .learning_rate = 1e-3,
                      .tokens_per_sec = 1000.0});
    }
  }
  // Returns the page; keeps what write_report() returns.
  std::string page() {
    EXPECT_TRUE(posix_env().replace_text(paths_.events(), lines_).ok());
    const Result<std::string> summary = write_report(posix_env(), paths_);
    EXPECT_TRUE(summary.ok());
    summary_ = summary.value();
    return posix_env().read_text(paths_.report()).value();
  }

  TemporaryDirectory directory_;
  RunPaths paths_{.directory = directory_.path()};
  std::string lines_, summary_;
};

// Returns the content of the first path of this class.
std::string line_of_curve(const std::string& html, const std::string& css_class) {
  const std::string begin = "<path class=\"line " + css_class + "\" d=\"";
  const std::size_t at = html.find(begin);
  EXPECT_NE(at, std::string::npos);
  return html.substr(at + begin.size(), html.find('"', at + begin.size()) - at - begin.size());
}

TEST_F(NumbersReportTest, ShowsVerdictsAndMarksTheirSteps) {
  steps(1, 20, 4.0);
  write(skip_shown());
  steps(21, 21, no_number);
  steps(22, 60, 3.0);
  write(eviction_shown());
  const std::string html = page();
  EXPECT_THAT(html,
              HasSubstr("<h2>Numbers <small>1 step skipped (21), memory of rank 1 (host a&amp;b) changed "
                        "by itself at step 60, evicted at step 60; 1 step computed again to compare the "
                        "bits; newest first"));
  EXPECT_THAT(html,
              HasSubstr("<td class=\"name\">nonfinite</td><td class=\"name verdict-skip\">skipped</td>"
                        "<td>lane 1, microbatch 0</td><td class=\"details\">step 21: &lt;the loss&gt;"));
  EXPECT_THAT(html, HasSubstr("<td class=\"name\">a&amp;b</td><td class=\"number\">1</td><td "
                              "class=\"number\">1</td><td>–</td><td>60</td>"));
  EXPECT_THAT(html, HasSubstr("1 skipped</small>"));
  EXPECT_THAT(html, HasSubstr("<i class=\"verdict-evict\"></i>rank left out"));
  std::size_t marks = 0;
  const std::string mark = "<g class=\"marker verdict-skip\"><title>nonfinite at step 21: skipped\n";
  for (std::size_t at = html.find(mark); at != std::string::npos; at = html.find(mark, at + 1)) ++marks;
  EXPECT_EQ(marks, 2U) << "on the loss and on the gradient norm";
  for (const char* unwanted : {"<the loss>", "NaN", " inf", "a&b"})
    EXPECT_THAT(html, Not(HasSubstr(unwanted)));
  EXPECT_THAT(summary_,
              EndsWith("numbers: 1 step skipped (21), memory of rank 1 (host a&b) changed by itself "
                       "at step 60, evicted at step 60"));
}

TEST_F(NumbersReportTest, ASkippedStepInterruptsTheCurves) {
  steps(1, 20, 4.0);
  const auto pieces = [](const std::string& path) { return std::ranges::count(path, 'M'); };
  for (const char* curve : {"raw", "train", "other"})
    EXPECT_EQ(pieces(line_of_curve(page(), curve)), 1) << curve;
  steps(21, 21, no_number);
  steps(22, 22, 3.5);
  steps(23, 23, no_number);
  steps(24, 60, 3.0);
  const std::string html = page();
  for (const char* curve : {"raw", "train", "other"})
    EXPECT_EQ(pieces(line_of_curve(html, curve)), 3) << curve;
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

TEST_F(NumbersReportTest, ARunWithoutVerdictsHasNoSection) {
  steps(1, 20, 4.0);
  const std::string html = page();
  EXPECT_THAT(html, Not(HasSubstr("<h2>Numbers")));
  EXPECT_THAT(html, Not(HasSubstr("\"marker verdict")));
  EXPECT_THAT(html, Not(HasSubstr("skipped")));
  EXPECT_EQ(summary_, "");
}

TEST(NumbersReport, ManyVerdictsStaySmall) {
  NumbersLog numbers;
  for (std::uint64_t step = 1; step <= 5000; ++step)
    numbers.verdicts.push_back({.step = step, .what = "spike", .action = step % 2 == 0 ? "clip" : "<new>"});
  EXPECT_EQ(verdict_markers(numbers).size(), 400U);
  const std::string html = numbers_section(numbers);
  EXPECT_THAT(html, HasSubstr("the last 500 of 5000"));
  EXPECT_THAT(html, HasSubstr("<td class=\"name verdict-none\">&lt;new&gt;</td>"));
  EXPECT_LT(html.size(), 100'000U);
  EXPECT_THAT(numbers_section({}), IsEmpty());
}

}  // namespace
}  // namespace holdfast::test
