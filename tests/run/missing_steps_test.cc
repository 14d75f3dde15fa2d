// Lines of the event log that died with the leader that had them: which are missing, and what the next one
// writes.
#include "runtime/run/missing_steps.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/run/event_log.h"
#include "runtime/run/run_history.h"
#include "runtime/save/run_state.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::string start(const std::string& from) {
  return "{\"event\":\"start\",\"resumed_from_step\":" + from + "}\n";
}
std::string step_lines(int first, int last) {
  std::string text;
  for (int step = first; step <= last; ++step)
    text += fmt::format("{{\"event\":\"step\",\"step\":{}}}\n", step);
  return text;
}
std::string gap(int first, int last) {
  return fmt::format("{{\"event\":\"gap\",\"first_step\":{},\"last_step\":{}}}\n", first, last);
}

TEST(MissingSteps, AreThoseUpToTheStepOfTheState) {
  EXPECT_THAT(missing_steps(start("null") + step_lines(1, 9), 9), IsEmpty());
  EXPECT_THAT(missing_steps(start("null") + step_lines(1, 9), 7), IsEmpty());
  EXPECT_THAT(missing_steps(start("null") + step_lines(1, 5), 9), ElementsAre(StepInterval{6, 9}));
  EXPECT_THAT(missing_steps(start("null"), 2), ElementsAre(StepInterval{1, 2}));
  EXPECT_THAT(missing_steps(start("null") + step_lines(1, 5) + "{\"event\":\"step\",\"st", 6),
              ElementsAre(StepInterval{6, 6}))
      << "a torn line";
}

TEST(MissingSteps, AreKnownOfTheEndOfALogAlone) {
  EXPECT_THAT(missing_steps(step_lines(800, 900), 900), IsEmpty());
  EXPECT_THAT(missing_steps(step_lines(800, 900), 903), ElementsAre(StepInterval{901, 903}));
  EXPECT_THAT(missing_steps(step_lines(800, 900), 500), IsEmpty()) << "which is older than this end";
  EXPECT_THAT(missing_steps("", 500), IsEmpty());
  EXPECT_THAT(missing_steps("{\"event\":\"checkpoint\",\"step\":5}\n", 500), IsEmpty());
}

TEST(MissingSteps, ThoseBeforeAStartAreItsOwnAffair) {
  EXPECT_THAT(missing_steps(start("500") + step_lines(501, 510), 512), ElementsAre(StepInterval{511, 512}));
  EXPECT_THAT(missing_steps(step_lines(1, 300) + start("500") + step_lines(501, 510), 510), IsEmpty());
  EXPECT_THAT(missing_steps(start("null") + step_lines(1, 20) + start("10") + step_lines(11, 12), 13),
              ElementsAre(StepInterval{13, 13}))
      << "line 13 is of a future that was discarded";
}

TEST(MissingSteps, AStepThatIsComputedAgainIsThereTwice) {
  EXPECT_THAT(missing_steps(start("null") + step_lines(1, 9) + step_lines(7, 12), 12), IsEmpty());
  EXPECT_THAT(missing_steps(step_lines(50, 55) + step_lines(48, 52) + step_lines(54, 60), 61),
              ElementsAre(StepInterval{61, 61}));
}

TEST(MissingSteps, AGapThatIsSaidIsNotSaidAgain) {
  EXPECT_THAT(missing_steps(start("null") + step_lines(1, 5) + gap(6, 9) + step_lines(10, 12), 12),
              IsEmpty());
  EXPECT_THAT(missing_steps(start("null") + step_lines(1, 5) + step_lines(8, 9) + gap(6, 6), 10),
              ElementsAre(StepInterval{7, 7}, StepInterval{10, 10}));
  EXPECT_THAT(missing_steps(start("null") + step_lines(1, 5) + "{\"event\":\"gap\",\"lines\":3}\n", 6),
              ElementsAre(StepInterval{6, 6}))
      << "one that names no steps";
}

// Every seventh step was skipped: it has no loss.
CompletedStep completed(std::uint64_t step) {
  return {.step = step,
          .time_us = 1'700'000'000'000'000 + static_cast<std::int64_t>(step),
          .tokens = 512 * step,
          .loss = step % 7 == 0 ? no_number : 1.0 / static_cast<double>(step),
          .grad_norm = -0.0,
          .learning_rate = 1e-300,
          .duration_ms = 3.25,
          .tokens_per_sec = std::numeric_limits<double>::infinity(),
          .data_digest = digest_of(fmt::format("{}", step))};
}

RecentSteps recent_of(std::uint64_t last) {
  RecentSteps recent;
  for (std::uint64_t step = 1; step <= last; ++step) recent.add(completed(step));
  return recent;
}

std::string line_of(const CompletedStep& step) {
  EventLine line;
  return std::string(put_event(step_event(step), line).end());
}

TEST(RecentSteps, AreInTheManifestWithAllBits) {
  RunState state{.run_id = "run", .step = 100};
  state.recent_steps = recent_of(100);
  Manifest manifest;
  put_state(state, manifest);
  const Result<RunState> taken = take_state(manifest, "here");
  ASSERT_TRUE(taken.ok()) << taken.error().message;
  for (std::uint64_t step = 0; step <= 101; ++step) {
    SCOPED_TRACE(step);
    const CompletedStep* const found = taken->recent_steps.find(step);
    ASSERT_EQ(found != nullptr, step > 100 - RecentSteps::capacity && step <= 100);
    if (found == nullptr) continue;
    EXPECT_EQ(line_of(*found), line_of(completed(step)));
    EXPECT_TRUE(std::signbit(found->grad_norm));
  }
}

TEST(RecentSteps, OfAnotherKindAreNone) {
  Manifest manifest;
  put_state({.run_id = "run", .step = 3, .recent_steps = recent_of(3)}, manifest);
  const std::string text = manifest.values.at(recent_steps_key);
  for (const std::string& bad : {text.substr(1), text + text.substr(0, 32), std::string(text.size(), 'x')}) {
    manifest.values[recent_steps_key] = bad;
    EXPECT_EQ(take_state(manifest, "here")->recent_steps.find(3), nullptr);
  }
  manifest.values.erase(recent_steps_key);
  ASSERT_TRUE(take_state(manifest, "here").ok()) << "as programs before wrote it";
  EXPECT_EQ(take_state(manifest, "here")->recent_steps.find(3), nullptr);
}

class WriteMissingStepsTest : public testing::Test {
 protected:
  void write(std::uint64_t step, const RecentSteps& recent) {
    EventLog log(posix_env(), paths_.events());
    write_missing_steps(posix_env(), paths_, step, recent, log);
  }
  void append(const std::string& text) {
    EXPECT_TRUE(posix_env().append_line(paths_.events(), text.substr(0, text.size() - 1)).ok());
  }
  RunHistory history() {
    Result<RunHistory> history = read_history(posix_env(), paths_);
    EXPECT_TRUE(history.ok());
    return history.ok() ? std::move(history).value() : RunHistory();
  }
  std::vector<std::uint64_t> steps_there() {
    std::vector<std::uint64_t> found;
    const RunHistory history = this->history();
    for (const StepRecord& record : history.steps) found.push_back(record.step);
    return found;
  }
  std::vector<std::uint64_t> from_to(std::uint64_t first, std::uint64_t last) {
    std::vector<std::uint64_t> all;
    for (; first <= last; ++first) all.push_back(first);
    return all;
  }

  TemporaryDirectory directory_;
  RunPaths paths_{directory_.path()};
};

TEST_F(WriteMissingStepsTest, WritesThoseThatTheStateHas) {
  append(start("null") + step_lines(1, 5));
  write(9, recent_of(9));
  EXPECT_EQ(steps_there(), from_to(1, 9));
  const std::string text = posix_env().read_text(paths_.events()).value();
  const std::string expected = line_of(completed(9));
  EXPECT_THAT(text, testing::HasSubstr(expected.substr(0, expected.size() - 1) + ",\"restored_us\":"));
  write(9, recent_of(9));
  EXPECT_EQ(posix_env().read_text(paths_.events()).value(), text) << "once";
}

TEST_F(WriteMissingStepsTest, NamesTheOthers) {
  append(start("null") + step_lines(1, 5));
  write(100, recent_of(100));
  std::vector<std::uint64_t> expected = from_to(1, 5);
  for (const std::uint64_t step : from_to(100 - RecentSteps::capacity + 1, 100)) expected.push_back(step);
  EXPECT_EQ(steps_there(), expected);
  std::vector<std::string> gaps;
  const RunHistory history = this->history();
  for (const RunEvent& event : history.events)
    if (event.name == "gap") gaps.push_back(event.details);
  EXPECT_THAT(gaps, ElementsAre(testing::HasSubstr("first step 6, last step 36")));
  const std::string text = posix_env().read_text(paths_.events()).value();
  write(100, recent_of(100));
  EXPECT_EQ(posix_env().read_text(paths_.events()).value(), text) << "once";
}

TEST_F(WriteMissingStepsTest, DoesWithoutALog) {
  write(9, recent_of(9));
  EXPECT_FALSE(posix_env().status(paths_.events())->exists);
}

}  // namespace
}  // namespace holdfast::test
