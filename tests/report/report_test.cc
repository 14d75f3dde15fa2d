#include "runtime/report/report.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/report/report_chart.h"
#include "runtime/run/event_log.h"
#include "runtime/run/run_history.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// An event log in the making.
class Lines {
 public:
  void start(std::int64_t resumed_from) {
    line_.begin("start", time_us_)
        .field("run", "00ff")
        .field("parameters", 1234567)
        .field("ranks", 4)
        .field("steps", 90);
    if (resumed_from < 0) line_.null_field("resumed_from_step");
    if (resumed_from >= 0) line_.field("resumed_from_step", resumed_from);
    end();
  }
  void step(std::int64_t step, double loss) {
    line_.begin("step", time_us_).field("step", step).field("loss", loss).field("grad_norm", 0.5);
    line_.field("learning_rate", 1e-3)
        .field("tokens", step * 100)
        .field("tokens_per_sec", 2000.0 + static_cast<double>(step));
    end();
  }
  void evaluation(std::int64_t step, double loss) {
    line_.begin("evaluation", time_us_).field("step", step).field("loss", loss).field("duration_ms", 12.0);
    end();
  }
  void other(const char* event, std::int64_t step, const std::string& text) {
    line_.begin(event, time_us_).field("step", step).field("reason", text);
    end();
  }
  void raw(const std::string& text) { text_ += text; }
  void pause(std::int64_t seconds) { time_us_ += seconds * 1'000'000; }
  const std::string& text() const { return text_; }

 private:
  void end() {
    text_ += line_.end();
    text_ += '\n';
    time_us_ += 1'000'000;
  }
  EventLine line_;
  std::string text_;
  std::int64_t time_us_ = 1'700'000'000'000'000;
};

class ReportTest : public testing::Test {
 protected:
  std::string report(const Lines& lines) {
    EXPECT_TRUE(posix_env().replace_text(paths_.events(), lines.text()).ok());
    const Result<std::string> written = write_report(posix_env(), paths_);
    EXPECT_TRUE(written.ok()) << written.error().message;
    return posix_env().read_text(paths_.report()).value();
  }

  TemporaryDirectory directory_;
  RunPaths paths_{.directory = directory_.path()};
};

TEST(RunHistory, TakesTheLastOfAStepThatWasComputedAgain) {
  Lines lines;
  lines.start(-1);
  for (int step = 1; step <= 30; ++step) lines.step(step, 5.0);
  lines.evaluation(10, 4.0);
  lines.pause(1000);  // nobody was running
  lines.start(20);    // what came after step 20 is forgotten
  for (int step = 21; step <= 25; ++step) lines.step(step, 3.0);
  lines.evaluation(10, 3.5);
  lines.raw("{\"event\":\"step\",\"step\":26,\"lo");
  const RunHistory history = parse_history(lines.text());
  ASSERT_EQ(history.steps.size(), 25u);
  EXPECT_EQ(history.steps[19].loss, 5.0);
  EXPECT_EQ(history.steps[20].loss, 3.0);
  EXPECT_EQ(history.steps[24].loss, 3.0);
  ASSERT_EQ(history.held_out.size(), 1u);
  EXPECT_EQ(history.held_out[0].loss, 3.5);
  EXPECT_EQ(history.tokens, 2500u);
  EXPECT_EQ(history.parameters, 1234567u);
  EXPECT_EQ(history.running_us, (31 + 6) * 1'000'000);
  EXPECT_DOUBLE_EQ(median_tokens_per_sec(history), 2013.0);
  ASSERT_EQ(history.events.size(), 4u);
  EXPECT_FALSE(history.events[0].resumed);
  EXPECT_TRUE(history.events[2].resumed);
  EXPECT_EQ(history.events[2].step, 20u);
}

TEST(RunHistory, CountsStartsThatDiedOrFailed) {
  const auto failures = [](const std::string& lines) { return parse_history(lines).failures; };
  const std::string start = "{\"event\":\"start\"}\n", recovery = "{\"event\":\"recovery\",\"step\":3}\n";
  const auto finish = [](const char* state) {
    return fmt::format("{{\"event\":\"finish\",\"state\":\"{}\"}}\n", state);
  };
  EXPECT_EQ(failures(start), 0) << "it may still be running";
  EXPECT_EQ(failures(start + finish("saved") + start), 0);
  EXPECT_EQ(failures(start + finish("finished") + start), 0);
  EXPECT_EQ(failures(start + start + finish("failed") + start), 2);
  EXPECT_EQ(failures(start + finish("saved") + start + start), 1);
  EXPECT_EQ(failures(start + recovery + recovery + finish("saved") + start), 2);
}

TEST_F(ReportTest, SaysWhatWasUsedOfEachSource) {
  const auto lines_of = [](const char* sources, const char* samples) {
    Lines lines;
    lines.raw(fmt::format("{{\"event\":\"start\",\"time_us\":1,\"ranks\":1,\"sources\":[{}]}}\n", sources));
    lines.raw(
        fmt::format("{{\"event\":\"step\",\"time_us\":2,\"step\":1,\"loss\":2.0,\"tokens\":64000,\"source_"
                    "samples\":[{}]}}\n",
                    samples));
    return lines;
  };
  const std::string two = report(lines_of(
      R"({"path":"a&b.txt","samples":1500,"weight":3.0},{"path":"c.bin","samples":1000,"weight":1.0})",
      "3000,1000"));
  EXPECT_THAT(two, HasSubstr("a&amp;b.txt"));
  EXPECT_THAT(two, HasSubstr("48,000"));
  EXPECT_THAT(two, HasSubstr("2.00"));
  EXPECT_THAT(two, HasSubstr("75.0 %"));
  EXPECT_EQ(write_report(posix_env(), paths_).value(),
            "source: a&b.txt: 3000 samples, 48000 tokens, 2.00 epochs\n"
            "source: c.bin: 1000 samples, 16000 tokens, 1.00 epochs");
  report(lines_of(R"({"path":"c.bin","samples":1000,"weight":1.0})", "4000"));
  EXPECT_EQ(write_report(posix_env(), paths_).value(), "")
      << "the tokens of a single source are those of the run";
}

TEST(RunHistory, ShowsUnitsForPeople) {
  const RunHistory history = parse_history(
      "{\"event\":\"other\",\"step\":4,\"data_bytes_sent\":1610612736,\"gradient_exposed_ms\":1.25,\"exit_"
      "code\":0}\n"
      "{\"event\":\"finish\",\"step\":4,\"data_bytes_sent\":1610612736,\"exit_code\":0}");
  ASSERT_EQ(history.events.size(), 2u);
  EXPECT_EQ(history.events[0].details, "data bytes sent 1.50 GiB, gradient exposed 1.2 ms, exit code 0");
  EXPECT_EQ(history.events[1].details, "exit code 0");  // the counters of an end are in the log
}

TEST(RunHistory, SurvivesForeignLines) {
  const RunHistory history = parse_history(
      "not "
      "json\n[1,2]\n{}\n{\"event\":7,\"step\":\"x\",\"time_us\":-5}\n{\"event\":\"step\",\"step\":3,\"loss\":"
      "null}\n\n"
      "{\"event\":\"step\",\"step\":4,\"loss\":1.5,\"time_us\":\"late\"}");
  ASSERT_EQ(history.steps.size(), 2u);
  EXPECT_TRUE(std::isnan(history.steps[0].loss));
  EXPECT_EQ(history.steps[1].loss, 1.5);
}

TEST_F(ReportTest, SaysHowTheRunStands) {
  Lines lines;
  lines.start(-1);
  for (int step = 1; step <= 40; ++step) lines.step(step, 2.0);
  lines.evaluation(40, 2.25);
  lines.other("checkpoint", 40, "");
  lines.other("fault", 40, "rank 2 <died> & is gone");
  lines.start(40);
  EXPECT_TRUE(write_status(posix_env(), paths_,
                           {.state = "failed", .step = 40, .exit_code = 76, .reason = "lost a peer"})
                  .ok());
  const std::string html = report(lines);
  for (const char* expected : {"<!doctype html>", "badge failed", "lost a peer", "1,234,567", "2.0000",
                               "2.2500", "of 90", "marker resume", "marker fault", "marker checkpoint",
                               "rank 2 &lt;died&gt; &amp; is gone", "prefers-color-scheme: dark"}) {
    EXPECT_THAT(html, HasSubstr(expected));
  }
  for (const char* unwanted : {"<script", "http:", "https:", "nan", "inf\"", "<died>"}) {
    EXPECT_THAT(html, Not(HasSubstr(unwanted)));
  }
}

TEST_F(ReportTest, WorksFromTheFirstLineOn) {
  Lines lines;
  lines.start(-1);
  EXPECT_THAT(report(lines), HasSubstr("No step has been made yet"));
  lines.step(1, std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(report(lines), HasSubstr("No step has been made yet"));
  lines.step(2, 4.0);
  EXPECT_THAT(report(lines), HasSubstr("<path class=\"line train\""));
}

TEST_F(ReportTest, AnotherDirectoryIsASentence) {
  const Result<std::string> written = write_report(posix_env(), paths_);
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, ExitCode::config);
  EXPECT_THAT(written.error().message, HasSubstr("events.jsonl"));
}

TEST_F(ReportTest, ALongRunStaysSmall) {
  Lines lines;
  lines.start(-1);
  for (int step = 1; step <= 20'000; ++step) lines.step(step, 3.0 + std::sin(step));
  const std::string html = report(lines);
  EXPECT_LT(html.size(), 250'000u);
  const std::size_t begin = html.find("<path class=\"line raw\"");
  ASSERT_NE(begin, std::string::npos);
  const std::string path = html.substr(begin, html.find("/>", begin) - begin);
  EXPECT_LE(std::count(path.begin() + 30, path.end(), 'L') + 1, 2000);
  EXPECT_GE(std::count(path.begin() + 30, path.end(), 'L'), 1000);
}

TEST(Downsample, KeepsSpikesAndOrder) {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 10'000; ++i)
    points.push_back({.x = i * 1.0, .y = i == 4321 ? 50.0 : i == 7000 ? -9.0 : std::sin(i)});
  const std::vector<ChartPoint> kept = downsample(points, 100);
  EXPECT_LE(kept.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(kept, {}, &ChartPoint::x));
  EXPECT_EQ(std::ranges::max(kept, {}, &ChartPoint::y).x, 4321.0);
  EXPECT_EQ(std::ranges::min(kept, {}, &ChartPoint::y).x, 7000.0);
  EXPECT_EQ(downsample(points, 10'000).size(), 10'000u);
}

TEST(Smooth, KeepsALineAndItsStart) {
  std::vector<ChartPoint> line;
  for (int i = 0; i < 50; ++i) line.push_back({.x = i * 1.0, .y = 3.0 - 0.01 * i});
  const std::vector<ChartPoint> smoothed = smooth(line, 5);
  ASSERT_EQ(smoothed.size(), 50u);
  for (std::size_t i = 0; i < 45; ++i) EXPECT_NEAR(smoothed[i].y, line[i].y, 1e-12);
  const std::vector<ChartPoint> flat = smooth({{0, 1}, {1, 3}, {2, 1}, {3, 3}, {4, 1}}, 1);
  EXPECT_NEAR(flat[1].y, 5.0 / 3.0, 1e-12);
}

TEST(ShortNumber, IsShort) {
  EXPECT_EQ(short_number(0.0), "0");
  EXPECT_EQ(short_number(0.25), "0.25");
  EXPECT_EQ(short_number(6e-4), "6e-4");
  EXPECT_EQ(short_number(1e-3), "1e-3");
  EXPECT_EQ(short_number(5000.0), "5000");
  EXPECT_EQ(short_number(12'400.0), "12.4k");
  EXPECT_EQ(short_number(3'100'000.0), "3.1M");
  EXPECT_EQ(short_number(-2.5), "-2.5");
}

// Degenerate data must not hang or draw outside of the picture.
TEST(RenderChart, TakesAnyRange) {
  for (const std::vector<ChartPoint>& points :
       std::vector<std::vector<ChartPoint>>{{{1, 2}},
                                            {{1, 0}, {2, 0}},
                                            {{1, 1e300}, {2, -1e300}},
                                            {{1, 1e17}, {2, 1e17 + 16}},
                                            {{1, 1e-300}, {2, 1e-300}},
                                            {}}) {
    for (const bool log_y : {false, true}) {
      Chart chart;
      chart.log_y = log_y;
      chart.curves = {{.name = "value", .css_class = "train", .points = points}};
      const std::string svg = render_chart(chart);
      EXPECT_THAT(svg, HasSubstr("</svg>"));
      EXPECT_LT(svg.size(), 100'000u);
    }
  }
}

}  // namespace
}  // namespace holdfast::test
