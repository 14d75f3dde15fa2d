// Lines of the event log that died with the leader that had them: which are missing, and what the next one
// says of them.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "runtime/run/event_log.h"
#include "runtime/run/run_history.h"
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

class NoteMissingStepsTest : public testing::Test {
 protected:
  void note(std::uint64_t step) {
    EventLog log(posix_env(), paths_.events());
    note_missing_steps(posix_env(), paths_, step, log);
  }
  void append(const std::string& text) {
    EXPECT_TRUE(posix_env().append_line(paths_.events(), text.substr(0, text.size() - 1)).ok());
  }
  RunHistory history() {
    Result<RunHistory> history = read_history(posix_env(), paths_);
    EXPECT_TRUE(history.ok());
    return history.ok() ? std::move(history).value() : RunHistory();
  }
  TemporaryDirectory directory_;
  RunPaths paths_{directory_.path()};
};

TEST_F(NoteMissingStepsTest, NamesThem) {
  append(start("null") + step_lines(1, 5));
  note(36);
  const RunHistory told = history();
  ASSERT_EQ(told.events.size(), 2U);
  EXPECT_EQ(told.events[1].name, "gap");
  EXPECT_THAT(told.events[1].details, testing::HasSubstr("first step 6, last step 36"));
  EXPECT_EQ(told.steps.size(), 5U);
  const std::string text = posix_env().read_text(paths_.events()).value();
  note(36);
  EXPECT_EQ(posix_env().read_text(paths_.events()).value(), text) << "once";
}

TEST_F(NoteMissingStepsTest, AddNoTimeToTheRun) {
  append("{\"event\":\"start\",\"time_us\":1000000}\n{\"event\":\"step\",\"time_us\":3000000,\"step\":1}\n");
  note(2);
  EXPECT_EQ(history().running_us, 2'000'000);
}

TEST_F(NoteMissingStepsTest, DoesWithoutALog) {
  note(9);
  EXPECT_FALSE(posix_env().status(paths_.events())->exists);
}

}  // namespace
}  // namespace holdfast::test
