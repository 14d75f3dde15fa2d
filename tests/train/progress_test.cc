// Tests what a run tells of its steps: a step is never shown above the rate of large products, and one that was
// skipped never as a number that it does not have.
#include "runtime/train/progress.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Steps of 1 token and 1 FLOP each, beside a peak of 2 FLOP/s.
class PeakTest : public testing::Test {
 protected:
  std::string shown_after(std::int64_t step_ns) { return shown({}, step_ns); }
  std::string shown(StepOutcome outcome, std::int64_t step_ns = 1'000'000'000) {
    testing::internal::CaptureStdout();
    outcome.step = ++step_;
    progress_.stepped(outcome, {}, step_ns, {});
    return testing::internal::GetCapturedStdout();
  }

  std::string log_text() {
    EXPECT_TRUE(log_.flush().ok());
    std::ifstream file(directory_ / "events.jsonl");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::vector<double> beaten_;

 private:
  TemporaryDirectory directory_;
  EventQueue log_{posix_env(), directory_ / "events.jsonl"};
  Progress progress_{posix_env(),
                     log_,
                     {.steps = 100,
                      .every_steps = 1,
                      .flops_per_token = 1.0,
                      .peak_flops = 2.0,
                      .tokens_per_step = 1,
                      .peak_beaten = [this](double flops) { beaten_.push_back(flops); },
                      .logged_step = 1},
                     Progress::Role::speaks};
  std::uint64_t step_ = 0;
};

TEST_F(PeakTest, AStepBelowItIsShownAsItsShare) {
  EXPECT_THAT(shown_after(1'000'000'000), HasSubstr(" mfu 50% "));
  EXPECT_TRUE(beaten_.empty());
}

TEST_F(PeakTest, TheLogHasItAndWhetherTheStepIsComputedAgain) {
  shown_after(1'000'000'000);
  const std::string first = log_text();
  EXPECT_THAT(first, HasSubstr("\"mfu\":0.5,\"recomputed\":true}"));
  shown_after(1'000'000'000);
  EXPECT_THAT(log_text().substr(first.size()), Not(HasSubstr("recomputed")));
}

TEST_F(PeakTest, AStepThatBeatsItRaisesItOnce) {
  const std::string first = shown_after(250'000'000);
  EXPECT_THAT(first, HasSubstr(" mfu 100% "));
  EXPECT_THAT(first, HasSubstr("100 % is now the most that a step reached"));
  EXPECT_THAT(shown_after(500'000'000), HasSubstr(" mfu 50% "));
  const std::string faster = shown_after(125'000'000);
  EXPECT_THAT(faster, HasSubstr(" mfu 100% "));
  EXPECT_THAT(faster, Not(HasSubstr("is now the most"))) << "it was said";
  EXPECT_THAT(beaten_, ElementsAre(4.0, 8.0));
}

TEST_F(PeakTest, AStepThatWasSkippedIsShownAsThat) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(shown({.loss = nan,
                     .grad_norm = nan,
                     .action = VerdictAction::skip,
                     .verdict = VerdictEvent{.action = "skip"}}),
              HasSubstr("  loss - (skipped)  gn -  lr "));
  EXPECT_THAT(shown({.loss = 2.5,
                     .grad_norm = 7.0,
                     .action = VerdictAction::skip,
                     .verdict = VerdictEvent{.action = "skip"}}),
              HasSubstr("  loss 2.5000 (skipped)  gn 7.000  lr "));
  EXPECT_THAT(shown({.loss = 2.5,
                     .grad_norm = 7.0,
                     .action = VerdictAction::none,
                     .verdict = VerdictEvent{.action = "redo"}}),
              HasSubstr("  loss 2.5000  gn 7.000  lr "));
}

// Positions 32 to 63 were left out by a roll-back, so nobody has used them.
TEST(Progress, SaysWhatTheStepsHaveUsedOfEachSource) {
  const TemporaryDirectory directory;
  const SampleOrder order(1, {{.samples = 10, .weight = 3.0}, {.samples = 100, .weight = 1.0}});
  SourceCounts counts(order);
  EventQueue log(posix_env(), directory / "events.jsonl");
  Progress progress(posix_env(), log,
                    {.steps = 100,
                     .tokens_per_step = 16,
                     .tokens_per_sample = 2,
                     .sources = {{"often", 10, 3.0}, {"rarely", 100, 1.0}},
                     .source_counts = &counts},
                    Progress::Role::writes);
  RunState state;
  state.left_out = {{.begin = 32, .end = 64}};
  std::vector<std::uint64_t> used(2);
  for (std::uint64_t position = 0; position < 160; ++position)
    if (position < 32 || position >= 64) ++used[order.at(position).source];
  for (state.data_cursor = 152; state.data_cursor <= 160; state.data_cursor += 8)
    progress.stepped({.step = ++state.step}, state, 1'000'000, {});
  state.data_cursor = 160;
  ASSERT_TRUE(progress.finished({.state = "finished", .step = 2}, {}, {}, {}, state).ok());
  ASSERT_TRUE(log.flush().ok());
  std::ifstream file(directory / "events.jsonl");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr(fmt::format("\"source_samples\":[{},{}]}}", used[0], used[1])));
  EXPECT_THAT(text, HasSubstr("\"tokens\":256,"));
  EXPECT_THAT(text, HasSubstr(fmt::format(R"("sources":[{{"path":"often","samples":{},"tokens":{},"epochs":)",
                                          used[0], 2 * used[0])));
}

}  // namespace
}  // namespace holdfast::test
