// Where a run starts from, and what a start that is refused leaves alone.
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

class ResumeTest : public TrainingTest {
 protected:
  std::string status(const std::string& run) const {
    const Result<std::string> text = posix_env().read_text(run_directory(run) + "/status.json");
    return text.ok() ? *text : text.error().message;
  }
  std::string resume_from(const std::string& run) const { return "run.resume=" + run_directory(run); }
};

TEST_F(ResumeTest, NeverOverwritesARun) {
  ASSERT_EQ(train({.run = "one", .stop_after_steps = 5}).code, ExitCode::saved);
  const std::string before = digest("one");
  const RunEnd end = train({.run = "one", .overrides = {"run.resume=never"}});
  EXPECT_EQ(end.code, ExitCode::config);
  EXPECT_NE(end.message.find("nothing is overwritten"), std::string::npos) << end.message;
  EXPECT_EQ(digest("one"), before);
}

TEST_F(ResumeTest, MustNeedsACheckpoint) {
  const RunEnd end = train({.run = "none", .overrides = {"run.resume=must"}});
  EXPECT_EQ(end.code, ExitCode::checkpoint);
}

TEST_F(ResumeTest, AnotherDirectoryGoesOnWithTheSameBits) {
  ASSERT_EQ(train({.run = "whole"}).code, ExitCode::done);
  ASSERT_EQ(train({.run = "part", .ranks = 2, .stop_after_steps = 7}).code, ExitCode::saved);
  const RunEnd end = train({.run = "moved", .ranks = 3, .overrides = {resume_from("part")}});
  ASSERT_EQ(end.code, ExitCode::done) << end.message;
  EXPECT_EQ(digest("moved"), digest("whole"));
}

TEST_F(ResumeTest, TwoLineagesNeverShareADirectory) {
  ASSERT_EQ(train({.run = "one", .stop_after_steps = 12}).code, ExitCode::saved);
  ASSERT_EQ(train({.run = "two", .stop_after_steps = 5}).code, ExitCode::saved);
  const std::string before = digest("one");
  const RunEnd end = train({.run = "one", .overrides = {resume_from("two")}});
  EXPECT_EQ(end.code, ExitCode::config);
  EXPECT_NE(end.message.find("two runs in one directory"), std::string::npos) << end.message;
  EXPECT_EQ(digest("one"), before);
}

TEST_F(ResumeTest, ARefusedStartLeavesTheRecordOfAFinishedRun) {
  ASSERT_EQ(train({.run = "done"}).code, ExitCode::done);
  const std::string before = status("done");
  ASSERT_NE(before.find("finished"), std::string::npos) << before;
  EXPECT_EQ(train({.run = "done", .overrides = {"model.width=64"}}).code, ExitCode::config);
  EXPECT_EQ(status("done"), before);
}

TEST_F(ResumeTest, AnEvaluationThatAStopLeftOutIsMadeUpFor) {
  ASSERT_EQ(train({.run = "stopped", .stop_after_steps = 10}).code, ExitCode::saved);
  ASSERT_EQ(train({.run = "stopped"}).code, ExitCode::done);
  const Result<std::string> events = posix_env().read_text(run_directory("stopped") + "/events.jsonl");
  ASSERT_TRUE(events.ok());
  const std::size_t evaluation = events->find("\"event\":\"evaluation\"");
  ASSERT_NE(evaluation, std::string::npos);
  EXPECT_NE(events->substr(evaluation, 80).find("\"step\":10"), std::string::npos)
      << events->substr(evaluation, 80);
}

TEST_F(ResumeTest, ChangedDataIsNoticed) {
  ASSERT_EQ(train({.run = "data", .stop_after_steps = 5}).code, ExitCode::saved);
  Result<std::string> text = posix_env().read_text(directory_ / "train.txt");
  ASSERT_TRUE(text.ok());
  (*text)[text->size() / 2] ^= 1;
  ASSERT_TRUE(posix_env().replace_text(directory_ / "train.txt", *text).ok());
  const RunEnd end = train({.run = "data"});
  EXPECT_EQ(end.code, ExitCode::data);
  EXPECT_NE(end.message.find("changed since"), std::string::npos) << end.message;
}

}  // namespace
}  // namespace holdfast::test
