// checkpoint.download_command: when it is asked, what counts of what it brings, and what does not.
#include <gmock/gmock.h>

#include "runtime/elastic/download.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(WantsDownload, OnlyWhereNothingIsFoundAndSomethingMayCount) {
  Config config;
  EXPECT_FALSE(wants_download(config, {})) << "no command";
  config.checkpoint.download_command = "true";
  for (const auto& [resume, wants] : {std::pair("auto", true), std::pair("must", true),
                                      std::pair("never", false), std::pair("a/path", false)}) {
    config.run.resume = resume;
    EXPECT_EQ(wants_download(config, {}), wants) << resume;
  }
  config.run.resume = "auto";
  EXPECT_FALSE(wants_download(config, {.checkpoint = "run/checkpoints/step-00000002"}));
  EXPECT_FALSE(wants_download(config, {.snapshot = SnapshotStep{.step = 3}}));
  StartPoint start{.lineage = {.first_step = 9}};
  start.lineage.roll_back({.parent = {.step = 8}});
  EXPECT_FALSE(wants_download(config, start)) << "nothing up to step 8 was ever published";
  start.lineage.first_step = 8;
  EXPECT_TRUE(wants_download(config, start));
}

class DownloadTest : public TrainingTest {
 protected:
  std::string remote() const { return run_directory("remote"); }
  std::string fetching() const { return "cp " + remote() + "/* $HOLDFAST_DOWNLOAD/"; }
  // Stops after so many steps, with its checkpoint elsewhere and nothing here.
  void lose_all_but_remote(const Launch& launch = {.run = "run", .ranks = 2, .stop_after_steps = 7}) {
    ASSERT_EQ(train(launch).code, ExitCode::saved);
    const std::string visible = run_directory(launch.run) + "/checkpoints";
    const std::vector<std::string> saved = posix_env().list(visible).value();
    ASSERT_EQ(saved.size(), 1U);
    ASSERT_TRUE(posix_env().rename(visible + "/" + saved.front(), remote()).ok());
    ASSERT_TRUE(posix_env().remove_tree(run_directory(launch.run)).ok());
  }
  RunEnd start(std::vector<std::string> overrides, int ranks = 2) {
    return train({.run = "run", .ranks = ranks, .overrides = std::move(overrides)});
  }
  std::string command(const std::string& line) const { return "checkpoint.download_command=" + line; }
  // Lists what a start takes for a checkpoint, or might have left on the way to one.
  void expect_nothing_here() const {
    for (const char* folder : {"/checkpoints", "/.pending"}) {
      const Result<std::vector<std::string>> names = posix_env().list(run_directory("run") + folder);
      EXPECT_THAT(names.ok() ? *names : std::vector<std::string>(), IsEmpty()) << folder;
    }
  }
  std::string reference() {
    EXPECT_EQ(train({.run = "reference"}).code, ExitCode::done);
    return digest("reference");
  }
};

TEST_F(DownloadTest, TheRunGoesOnFromWhatItBrings) {
  const std::string expected = reference();
  for (const int ranks : {1, 2, 4}) {
    lose_all_but_remote();
    const RunEnd end = start({command(fetching()), "run.resume=must"}, ranks);
    ASSERT_EQ(end.code, ExitCode::done) << end.message;
    EXPECT_EQ(digest("run"), expected);
    const std::string events = posix_env().read_text(run_directory("run") + "/events.jsonl").value();
    EXPECT_THAT(events, HasSubstr(R"("resumed_from_step":7)"));
    ASSERT_TRUE(posix_env().remove_tree(run_directory("run")).ok());
    ASSERT_TRUE(posix_env().remove_tree(remote()).ok());
  }
}

TEST_F(DownloadTest, IsNotAskedWhereACheckpointIsHere) {
  ASSERT_EQ(train({.run = "run", .ranks = 2, .stop_after_steps = 3}).code, ExitCode::saved);
  EXPECT_EQ(start({command("exit 1")}).code, ExitCode::done);
}

TEST_F(DownloadTest, NothingThereIsAFreshStart) {
  const std::string expected = reference();
  ASSERT_EQ(start({command("exit 0")}).code, ExitCode::done);
  EXPECT_EQ(digest("run"), expected);
}

TEST_F(DownloadTest, NothingThereIsAnErrorWhereARunMustBeResumed) {
  const RunEnd end = start({command("exit 0"), "run.resume=must"});
  EXPECT_EQ(end.code, ExitCode::checkpoint);
  EXPECT_THAT(end.message, HasSubstr("run.resume = \"must\", but"));
  expect_nothing_here();
}

// Damage, half of the files, no checkpoint at all, another model, another run in the same directory.
TEST_F(DownloadTest, WhatDoesNotCountLeavesNothingBehind) {
  lose_all_but_remote();
  const std::string flip =
      "; printf x | dd of=$HOLDFAST_DOWNLOAD/shard-00000.hfs bs=1 seek=5000 conv=notrunc 2>/dev/null";
  const auto expect_refused = [&](const std::vector<std::string>& overrides, const std::string& why) {
    const RunEnd end = start(overrides);
    EXPECT_EQ(end.code, ExitCode::checkpoint) << end.message;
    EXPECT_THAT(end.message,
                HasSubstr("checkpoint.download_command brought what this run cannot go on from: "));
    EXPECT_THAT(end.message, HasSubstr(why));
    EXPECT_THAT(end.message, HasSubstr("Nothing of it is kept"));
    expect_nothing_here();
  };
  expect_refused({command(fetching() + flip)}, "shard-00000.hfs is damaged");
  expect_refused({command(fetching() + "; rm $HOLDFAST_DOWNLOAD/shard-00001.hfs")}, "shard-00001.hfs");
  expect_refused({command(fetching() + "; rm $HOLDFAST_DOWNLOAD/manifest.json")}, "manifest.json");
  expect_refused({command(fetching()), "model.layers=1"}, "model.layers: 2 -> 1");
  expect_refused({command(fetching()), "run.seed=5"}, "run.seed");
  const std::string lineage = run_directory("run") + "/lineage.json";
  ASSERT_TRUE(
      posix_env().replace_text(lineage, encode_lineage({.run_id = "0123456789abcdef0123456789abcdef"})).ok());
  expect_refused({command(fetching())}, "is that of run 0123456789abcdef0123456789abcdef");
  ASSERT_TRUE(posix_env().remove(lineage).ok());
  const RunEnd end = start({command(fetching())});
  EXPECT_EQ(end.code, ExitCode::done) << end.message;
}

// Where it is not known what is there nothing is begun, and another start may know.
TEST_F(DownloadTest, ACommandThatFailsBeginsNothing) {
  for (const auto& [line, why] :
       {std::pair("echo half > $HOLDFAST_DOWNLOAD/manifest.json; echo no route; exit 4",
                  "checkpoint.download_command ended with exit code 4. It is not known"),
        std::pair("sleep 60", "took longer than checkpoint.download_timeout = 1s")}) {
    const RunEnd end = start({command(line), "checkpoint.download_timeout=1"});
    EXPECT_EQ(end.code, ExitCode::communication);
    EXPECT_THAT(end.message, HasSubstr(why));
    expect_nothing_here();
  }
}

// Of a start that was killed.
TEST_F(DownloadTest, WhatAnOlderOneLeftIsRemoved) {
  lose_all_but_remote();
  const std::string older = run_directory("run") + "/.pending/incoming-00000000000000aa";
  ASSERT_TRUE(posix_env().make_directories(older).ok());
  ASSERT_TRUE(posix_env().replace_text(older + "/manifest.json", "half").ok());
  const RunEnd end = start({command("test ! -e " + older + " && " + fetching())});
  EXPECT_EQ(end.code, ExitCode::done) << end.message;
}

}  // namespace
}  // namespace holdfast::test
