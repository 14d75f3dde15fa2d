// Runs whose run directory is another one for each host: what a start makes of what it finds on their disks.
#include <gmock/gmock.h>

#include <filesystem>

#include "checkpoint/candidates.h"
#include "checkpoint/lineage.h"
#include "tests/support/hasty_env.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class LocalDirectoriesTest : public TrainingTest {
 protected:
  static Launch on_two_hosts(int stop_after_steps, std::vector<std::string> overrides = {}) {
    return {.run = "run",
            .ranks = 2,
            .stop_after_steps = stop_after_steps,
            .overrides = std::move(overrides),
            .hosts = {"n0", "n1"},
            .disks = {"n0", "n1"}};
  }
  std::string disk(const std::string& name) const { return run_directory(on_disk(name, "run")); }
  std::string checkpoint(const std::string& name, int step) const {
    return fmt::format("{}/checkpoints/step-{:08}", disk(name), step);
  }
  std::vector<std::string> names_in(const std::string& directory) const {
    const Result<std::vector<std::string>> names = posix_env().list(directory);
    return names.ok() ? *names : std::vector<std::string>();
  }
  // The field of the newest start in the log of this disk.
  Json of_last_start(const std::string& name, const std::string& field) const {
    const Result<std::string> text = posix_env().read_text(RunPaths{disk(name)}.events());
    std::istringstream lines(text.ok() ? *text : "");
    Json found;
    for (std::string line; std::getline(lines, line);) {
      const Json event = Json::parse(line);
      if (event["event"] == "start") found = event.contains(field) ? event[field] : Json();
    }
    return found;
  }

  // As if the host had died before it published its part of the newest one. `before`: the step of the one
  // that it has published last; 0: none.
  void never_published(const std::string& name, int newest, int before) const {
    fs::remove_all(checkpoint(name, newest));
    Result<Lineage> lineage = read_lineage(posix_env(), disk(name));
    ASSERT_TRUE(lineage.ok());
    lineage->newest_checkpoint.reset();
    if (before > 0) lineage->newest_checkpoint = ParentCheckpoint{0, static_cast<std::uint64_t>(before)};
    ASSERT_TRUE(write_lineage(posix_env(), disk(name), *lineage).ok());
  }

  const std::string no_copies = "checkpoint.replicas=off";
};

TEST_F(LocalDirectoriesTest, AShardThatIsGoneIsNoFreshStart) {
  ASSERT_EQ(train(on_two_hosts(5, {no_copies})).code, ExitCode::saved);
  ASSERT_THAT(names_in(checkpoint("n1", 5)), ElementsAre("manifest.json", "shard-00001.hfs"));
  const std::string shard = checkpoint("n1", 5) + "/shard-00001.hfs";

  fs::resize_file(shard, fs::file_size(shard) - 1);
  RunEnd end = train(on_two_hosts(0, {no_copies}));
  EXPECT_EQ(end.code, ExitCode::checkpoint);
  EXPECT_THAT(end.message,
              HasSubstr("step 5 is not whole: shard-00001.hfs is gone, or has another length, in "
                        "step-00000005 on n1"));
  fs::remove(shard);
  end = train(on_two_hosts(0, {no_copies}));
  EXPECT_EQ(end.code, ExitCode::checkpoint);
  EXPECT_THAT(end.message, HasSubstr("step 5 is not whole"));
  EXPECT_TRUE(fs::exists(checkpoint("n0", 5) + "/manifest.json"));
}

TEST_F(LocalDirectoriesTest, AManifestThatCannotBeReadIsNoFreshStart) {
  ASSERT_EQ(train(on_two_hosts(5, {no_copies})).code, ExitCode::saved);
  for (const char* name : {"n0", "n1"})
    ASSERT_TRUE(posix_env().replace_text(checkpoint(name, 5) + "/manifest.json", "{}").ok());
  const RunEnd end = train(on_two_hosts(0, {no_copies}));
  EXPECT_EQ(end.code, ExitCode::checkpoint);
  EXPECT_THAT(end.message, HasSubstr("on host n1: "));
}

// No generation begins where the run goes on, because nobody has removed it.
TEST_F(LocalDirectoriesTest, ANewestOneThatCannotBeReadIsPassedOver) {
  ASSERT_EQ(train(on_two_hosts(4, {no_copies, "checkpoint.every_steps=2"})).code, ExitCode::saved);
  for (const char* name : {"n0", "n1"})
    ASSERT_TRUE(posix_env().replace_text(checkpoint(name, 4) + "/manifest.json", "{}").ok());
  ASSERT_EQ(train(on_two_hosts(0, {no_copies, "checkpoint.every_steps=2"})).code, ExitCode::done);
  EXPECT_EQ(of_last_start("n0", "resumed_from_step"), Json(2));
  EXPECT_EQ(of_last_start("n0", "generation"), Json(0));
}

// A host has died before its first rename: what the other one has of that step is of no use to anybody.
TEST_F(LocalDirectoriesTest, PartsThatWereNeverWholeGo) {
  ASSERT_EQ(train(on_two_hosts(5, {no_copies})).code, ExitCode::saved);
  never_published("n1", 5, 0);
  ASSERT_EQ(train(on_two_hosts(3, {no_copies})).code, ExitCode::saved);
  for (const char* name : {"n0", "n1"})
    EXPECT_THAT(names_in(disk(name) + "/checkpoints"), ElementsAre("step-00000003"));
  const RunEnd end = train(on_two_hosts(0, {no_copies}));
  EXPECT_EQ(end.code, ExitCode::done) << end.message;
  EXPECT_EQ(of_last_start("n0", "resumed_from_step"), Json(3));
}

// The next save of the host that had published has to be the first of the run for all of them.
TEST_F(LocalDirectoriesTest, TheLineageForgetsPartsThatWereNeverWhole) {
  ASSERT_EQ(train(on_two_hosts(5, {no_copies})).code, ExitCode::saved);
  never_published("n1", 5, 0);
  Launch fails = on_two_hosts(0, {no_copies});
  fails.data_ends_in_step = 2;
  ASSERT_EQ(train(fails).code, ExitCode::communication);
  for (const char* name : {"n0", "n1"}) {
    EXPECT_THAT(names_in(disk(name) + "/checkpoints"), ElementsAre());
    EXPECT_EQ(read_lineage(posix_env(), disk(name)).value(), Lineage());
  }
  EXPECT_EQ(train(on_two_hosts(0, {no_copies})).code, ExitCode::done);
}

// Else retention on the host that has it takes it for the newest, and older ones go that others need.
TEST_F(LocalDirectoriesTest, ANewerPartThatWasNeverWholeGoes) {
  ASSERT_EQ(train(on_two_hosts(4, {no_copies, "checkpoint.every_steps=2"})).code, ExitCode::saved);
  never_published("n1", 4, 2);
  Launch fails = on_two_hosts(0, {no_copies});
  fails.data_ends_in_step = 2;
  ASSERT_EQ(train(fails).code, ExitCode::communication);
  EXPECT_EQ(of_last_start("n0", "resumed_from_step"), Json(2));
  EXPECT_THAT(names_in(disk("n0") + "/checkpoints"), ElementsAre("step-00000002"));
  EXPECT_EQ(train(on_two_hosts(3, {no_copies})).code, ExitCode::saved);
  EXPECT_EQ(of_last_start("n0", "generation"), of_last_start("n1", "generation"));
  EXPECT_FALSE(fs::exists(disk("n0") + "/.pending/removed-step-00000004"));
}

// Else a host that still has its parts removes, for their sake, what it has just saved.
TEST_F(LocalDirectoriesTest, PartsWhoseOthersAreLostDoNotCount) {
  ASSERT_EQ(train(on_two_hosts(12, {no_copies, "checkpoint.every_steps=4", "checkpoint.keep=3"})).code,
            ExitCode::saved);
  for (const int step : {8, 12}) fs::remove(checkpoint("n1", step) + "/shard-00001.hfs");
  ASSERT_EQ(train(on_two_hosts(3, {no_copies, "checkpoint.every_steps=1", "checkpoint.keep=2",
                                   "verdict.on_wrong_rank=continue"}))
                .code,
            ExitCode::saved);
  EXPECT_EQ(of_last_start("n0", "resumed_from_step"), Json(4));
  EXPECT_THAT(names_in(disk("n0") + "/checkpoints"),
              ElementsAre("step-00000006", "step-00000007", "step-00000008", "step-00000012"));
  EXPECT_EQ(train(on_two_hosts(0, {no_copies})).code, ExitCode::done);
  EXPECT_EQ(of_last_start("n0", "resumed_from_step"), Json(7));
}

TEST_F(LocalDirectoriesTest, AHostThatHadPublishedHasLostItsPart) {
  ASSERT_EQ(train(on_two_hosts(5, {no_copies})).code, ExitCode::saved);
  fs::remove_all(checkpoint("n1", 5));
  const RunEnd end = train(on_two_hosts(0, {no_copies}));
  EXPECT_EQ(end.code, ExitCode::checkpoint);
  EXPECT_THAT(names_in(disk("n0") + "/checkpoints"), ElementsAre("step-00000005"));
}

// It may come back, so a launcher starts the run again.
TEST_F(LocalDirectoriesTest, AHostThatIsAwayHasTheRest) {
  ASSERT_EQ(train(on_two_hosts(5, {no_copies})).code, ExitCode::saved);
  Launch alone = on_two_hosts(0, {no_copies});
  alone.ranks = 1;
  alone.hosts = alone.disks = {"n0"};
  const RunEnd end = train(alone);
  EXPECT_EQ(end.code, ExitCode::communication);
  EXPECT_THAT(end.message, HasSubstr("and the one of n1 has this file"));
  EXPECT_EQ(train(on_two_hosts(0, {no_copies})).code, ExitCode::done);
}

// A disk that cannot be read for a while loses nothing, and ends no run for good.
TEST_F(LocalDirectoriesTest, APartThatCannotBeReadIsReadAgainAndStays) {
  ASSERT_EQ(train(on_two_hosts(5, {no_copies})).code, ExitCode::saved);
  HastyEnv hasty(posix_env());
  Launch fails = on_two_hosts(0, {no_copies, "elastic.input_timeout=5s"});
  fails.faults = "load.read:1=error:EIO:always";
  EXPECT_EQ(train(fails, hasty).code, ExitCode::communication);
  fails.faults = "load.read:1=error:EIO";
  EXPECT_EQ(train(fails, hasty).code, ExitCode::done);
  EXPECT_EQ(of_last_start("n0", "resumed_from_step"), Json(5));
}

// Each of the reads of a start that may fail once, or from then on, on one of the hosts.
TEST_F(LocalDirectoriesTest, AManifestThatCannotBeReadForAMomentEndsNoRunForGood) {
  for (const bool for_ever : {false, true}) {
    std::uint64_t failures = 1;
    for (std::uint64_t at = 1; failures > 0 && at < 20; ++at) {
      fs::remove_all(disk("n0"));
      fs::remove_all(disk("n1"));
      ASSERT_EQ(train(on_two_hosts(5, {no_copies})).code, ExitCode::saved);
      FaultyEnv fails(posix_env());
      fails.inject({.operation = Operation::read_text,
                    .path_contains = checkpoint("n0", 5) + "/manifest.json",
                    .at = at,
                    .for_ever = for_ever,
                    .reason = EIO});
      HastyEnv hasty(fails);
      const RunEnd end = train(on_two_hosts(0, {no_copies, "elastic.input_timeout=5s"}), hasty);
      EXPECT_EQ(end.code, for_ever && end.code != ExitCode::done ? ExitCode::communication : ExitCode::done)
          << at << ": " << end.message;
      failures = fails.failure_count();
    }
    EXPECT_EQ(failures, 0U);
  }
}

TEST_F(LocalDirectoriesTest, AProbeThatCannotBeMadeForAMomentEndsNoStart) {
  FaultyEnv fails(posix_env());
  fails.inject({.operation = Operation::open, .path_contains = "/run_place.tmp.", .reason = EIO});
  HastyEnv hasty(fails);
  const RunEnd end = train(on_two_hosts(5, {no_copies}), hasty);
  EXPECT_EQ(end.code, ExitCode::saved) << end.message;
  EXPECT_EQ(fails.failure_count(), 1U);
}

// However often it is tried: what is on the other host counts again when the disk is back.
TEST_F(LocalDirectoriesTest, AStartThatIsRefusedChangesNothing) {
  ASSERT_EQ(train(on_two_hosts(5, {no_copies})).code, ExitCode::saved);
  const std::string aside = disk("n1") + "-unmounted";
  fs::rename(disk("n1"), aside);
  for (int start = 0; start < 2; ++start) {
    const RunEnd end = train(on_two_hosts(0, {no_copies}));
    EXPECT_EQ(end.code, ExitCode::checkpoint) << end.message;
    EXPECT_THAT(names_in(disk("n0") + "/checkpoints"), ElementsAre("step-00000005"));
    EXPECT_FALSE(fs::exists(disk("n1") + "/lineage.json"));
  }
  fs::remove_all(disk("n1"));
  fs::rename(aside, disk("n1"));
  EXPECT_EQ(train(on_two_hosts(0, {no_copies})).code, ExitCode::done);
  EXPECT_EQ(of_last_start("n0", "resumed_from_step"), Json(5));
}

// A host that dies while the first checkpoint is published leaves parts that count as lost, and all of the
// state in the RAM of the others.
TEST_F(LocalDirectoriesTest, WhatIsInRamCountsWhereNoCheckpointIsWhole) {
  const std::vector<std::string> often = {no_copies, "checkpoint.every_steps=2",
                                          "checkpoint.ram_every_steps=1"};
  Launch fails = on_two_hosts(0, often);
  fails.data_ends_in_step = 5;
  ASSERT_EQ(train(fails).code, ExitCode::communication);
  for (const std::string& step : names_in(disk("n1") + "/checkpoints"))
    fs::remove(disk("n1") + "/checkpoints/" + step + "/shard-00001.hfs");
  EXPECT_EQ(train(on_two_hosts(0, often)).code, ExitCode::done);
  EXPECT_EQ(of_last_start("n0", "resumed_from"), Json("ram"));
  EXPECT_EQ(of_last_start("n0", "resumed_from_step"), Json(4));
}

// A save may fail on another host: what all have whole counts without it.
TEST_F(LocalDirectoriesTest, RetentionCountsWhatAllHostsHave) {
  ASSERT_EQ(train(on_two_hosts(6, {no_copies, "checkpoint.every_steps=2", "checkpoint.keep=3"})).code,
            ExitCode::saved);
  Launch fails = on_two_hosts(
      0, {no_copies, "checkpoint.every_steps=8", "checkpoint.keep=1", "verdict.on_wrong_rank=continue"});
  fails.data_ends_in_step = 4;
  ASSERT_EQ(train(fails).code, ExitCode::communication);
  for (const char* name : {"n0", "n1"}) {
    EXPECT_THAT(names_in(disk(name) + "/checkpoints"),
                ElementsAre("step-00000004", "step-00000006", "step-00000008"));
  }
  ASSERT_EQ(train(on_two_hosts(2, {no_copies, "checkpoint.every_steps=9", "checkpoint.keep=1",
                                   "verdict.on_wrong_rank=continue"}))
                .code,
            ExitCode::saved);
  EXPECT_THAT(names_in(disk("n0") + "/checkpoints"), ElementsAre("step-00000009", "step-00000010"));
}

// A kill between the two renames of a save that replaces one of the same step.
TEST_F(LocalDirectoriesTest, ACheckpointThatWasBeingReplacedCounts) {
  ASSERT_EQ(train(on_two_hosts(5, {no_copies})).code, ExitCode::saved);
  fs::create_directories(disk("n0") + "/.pending");
  fs::rename(checkpoint("n0", 5), disk("n0") + "/.pending/replaced-step-00000005");
  ASSERT_EQ(train(on_two_hosts(0, {no_copies})).code, ExitCode::done);
  EXPECT_EQ(of_last_start("n0", "resumed_from_step"), Json(5));
}

// A run on one host may have saved shards that refer to files of older saves: these go to the new host, too.
TEST_F(LocalDirectoriesTest, BaseFilesComeWithTheShards) {
  const std::vector<std::string> still = {no_copies, "checkpoint.every_steps=1", "model.freeze=embedding",
                                          "checkpoint.keep=1", "verdict.audit_every_steps=0"};
  ASSERT_EQ(
      train({.run = "run", .stop_after_steps = 3, .overrides = still, .hosts = {"n0"}, .disks = {"n0"}}).code,
      ExitCode::saved);
  std::vector<std::string> files = names_in(checkpoint("n0", 3));
  ASSERT_THAT(files, Contains(StartsWith("base-")));
  RunEnd end = train(on_two_hosts(1, still));
  ASSERT_EQ(end.code, ExitCode::saved) << end.message;
  EXPECT_EQ(of_last_start("n1", "resumed_from_step"), Json(3));

  // Without one of them there is no shard.
  fs::remove_all(disk("n1"));
  for (const std::string& name : names_in(checkpoint("n0", 3))) {
    if (name.starts_with("base-")) fs::remove(checkpoint("n0", 3) + "/" + name);
  }
  fs::remove_all(checkpoint("n0", 4));
  end = train(on_two_hosts(0, still));
  EXPECT_EQ(end.code, ExitCode::checkpoint);
  EXPECT_THAT(end.message, HasSubstr("step 3 is not whole: shard-00000.hfs is gone"));
}

// Manifests tell hosts apart that have the same name, in whatever order a later start has them.
TEST_F(LocalDirectoriesTest, HostsOfOneName) {
  const auto on = [&](std::vector<std::string> machines, int stop_after_steps) {
    Launch launch{.run = "run",
                  .ranks = static_cast<int>(machines.size()),
                  .stop_after_steps = stop_after_steps,
                  .overrides = {no_copies},
                  .hosts = {},
                  .disks = machines};
    for (const std::string& machine : machines) launch.hosts.push_back("n@" + machine);
    return launch;
  };
  const auto hosts_of = [&](int step) {
    std::vector<std::string> hosts;
    const Result<Manifest> manifest = read_manifest(posix_env(), checkpoint("a", step));
    EXPECT_TRUE(manifest.ok());
    for (const ShardFile& shard : manifest->shards) hosts.push_back(shard.hosts.front());
    return hosts;
  };
  ASSERT_EQ(train(on({"a", "b", "c"}, 2)).code, ExitCode::saved);
  EXPECT_THAT(hosts_of(2), ElementsAre("n", "n#2", "n#3"));
  ASSERT_EQ(train(on({"c", "a", "b"}, 2)).code, ExitCode::saved);
  EXPECT_THAT(hosts_of(4), ElementsAre("n#3", "n", "n#2"));
  // The second start has copied what was on the host that is away now.
  for (const char* name : {"b", "c"}) fs::remove_all(checkpoint(name, 2));
  const RunEnd end = train(on({"b", "c"}, 2));
  EXPECT_EQ(end.code, ExitCode::communication) << "host a may come back";
  EXPECT_THAT(end.message, HasSubstr("no host that is here has shard-00001.hfs; it was on host n"));
}

// Uploads from the disks of several hosts, and downloads to them.
class RemoteCopyTest : public LocalDirectoriesTest {
 protected:
  std::string remote() const { return run_directory("remote"); }
  // Copies the file from the disk of its host, and writes down its name.
  std::string uploading() const {
    return fmt::format(
        "checkpoint.upload_shard_command=mkdir -p {0}/$HOLDFAST_NAME && cp $HOLDFAST_FILE "
        "{0}/$HOLDFAST_NAME/ && "
        "echo $HOLDFAST_NAME $(basename $HOLDFAST_FILE) >> {0}.log",
        remote());
  }
  // Copies the newest that has a manifest.
  std::string downloading() const {
    return fmt::format(
        "checkpoint.download_command=newest=$(ls -d {}/*/manifest.json 2>/dev/null | tail -n 1); "
        "test -z \"$newest\" || cp $(dirname $newest)/* $HOLDFAST_DOWNLOAD/",
        remote());
  }
  std::vector<std::string> with_remote(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {uploading(), downloading()});
    return more;
  }
  std::vector<std::string> sent() const {
    const Result<std::string> text = posix_env().read_text(remote() + ".log");
    std::istringstream lines(text.ok() ? *text : "");
    std::vector<std::string> names;
    for (std::string line; std::getline(lines, line);) names.push_back(line);
    return names;
  }
  // Verifies all that counts there, and returns the digest of the newest.
  std::string remote_digest() const {
    std::string digest = "none";
    for (const std::string& name : names_in(remote())) {
      if (!fs::exists(remote() + "/" + name + "/manifest.json")) continue;
      Result<Checkpoint> there = open_verified(posix_env(), remote() + "/" + name);
      EXPECT_TRUE(there.ok()) << name << ": " << there.error().message;
      if (!there.ok()) continue;
      const Result<StateDigest> state = digest_checkpoint(*there);
      digest = state.ok() ? to_text(*state) : state.error().message;
    }
    return digest;
  }
  void lose_disks(const std::vector<std::string>& names) const {
    for (const std::string& name : names) fs::remove_all(disk(name));
  }
  std::string reference(std::vector<std::string> overrides = {}) {
    EXPECT_EQ(train({.run = "reference", .overrides = std::move(overrides)}).code, ExitCode::done);
    return digest("reference");
  }
};

TEST_F(RemoteCopyTest, EveryHostSendsWhatItHas) {
  for (const std::string& copies : {no_copies, std::string("checkpoint.replicas=auto")}) {
    const RunEnd end = train(on_two_hosts(0, {copies, "checkpoint.every_steps=10", uploading()}));
    ASSERT_EQ(end.code, ExitCode::done) << end.message;
    EXPECT_EQ(remote_digest(), reference()) << copies;
    std::vector<std::string> names = sent();
    ASSERT_GE(names.size(), 3U);
    EXPECT_THAT(names.back(), HasSubstr("-step-00000020-"));
    EXPECT_THAT(names.back(), HasSubstr("manifest.json"));
    std::ranges::sort(names);
    EXPECT_EQ(std::ranges::adjacent_find(names), names.end()) << "each file is sent once: " << names.front();
    fs::remove_all(remote());
    fs::remove(remote() + ".log");
    fs::remove_all(run_directory("disks"));
    fs::remove_all(run_directory("reference"));
  }
}

// All disks are lost, or all but one; the run goes on where it was, on other hosts and in another layout.
TEST_F(RemoteCopyTest, WhatTheHostsHaveLostComesBack) {
  const std::string constant = "optimizer.schedule=constant";  // the first run ends early
  const std::string expected = reference({constant});
  struct Case {
    std::vector<std::string> lost, hosts;
  };
  const std::vector<Case> cases = {
      {{"n0", "n1"}, {"n0", "n1"}},              // all
      {{"n0"}, {"n0", "n1"}},                    // where rank 0 is
      {{"n1"}, {"n0", "n1"}},                    // what comes takes the place of the part that is there
      {{"n0", "n1"}, {"n2", "n3", "n4", "n4"}},  // all, and the hosts with them
  };
  for (const Case& each : cases) {
    fs::remove_all(run_directory("disks"));
    fs::remove_all(remote());
    const RunEnd begun = train(on_two_hosts(0, with_remote({no_copies, constant, "training.steps=7"})));
    ASSERT_EQ(begun.code, ExitCode::done) << begun.message;
    lose_disks(each.lost);
    Launch launch = on_two_hosts(0, with_remote({no_copies, constant, "run.resume=must"}));
    launch.ranks = static_cast<int>(each.hosts.size());
    launch.hosts = launch.disks = each.hosts;
    const RunEnd end = train(launch);
    ASSERT_EQ(end.code, ExitCode::done) << end.message;
    for (const std::string& host : each.hosts)
      EXPECT_EQ(of_last_start(host, "resumed_from_step"), Json(7)) << host;
    EXPECT_EQ(remote_digest(), expected);
  }
}

// A kill between the two renames with which a download takes the place of a part: the part is put back, so that it is
// known what is missing, and the download is made again.
TEST_F(RemoteCopyTest, APartThatWasBeingReplacedIsPutBack) {
  ASSERT_EQ(train(on_two_hosts(0, with_remote({no_copies, "training.steps=5"}))).code, ExitCode::done);
  lose_disks({"n1"});
  fs::create_directories(disk("n0") + "/.pending");
  fs::rename(checkpoint("n0", 5), disk("n0") + "/.pending/replaced-step-00000005");
  EXPECT_EQ(train(on_two_hosts(0, {no_copies, "checkpoint.download_command=exit 0"})).code,
            ExitCode::checkpoint);
  EXPECT_THAT(names_in(disk("n0") + "/checkpoints"), ElementsAre("step-00000005"));
  fs::rename(checkpoint("n0", 5), disk("n0") + "/.pending/replaced-step-00000005");
  ASSERT_EQ(train(on_two_hosts(0, with_remote({no_copies}))).code, ExitCode::done);
  EXPECT_EQ(of_last_start("n1", "resumed_from_step"), Json(5));
}

TEST_F(RemoteCopyTest, IsNotAskedWhereTheHostsHaveACheckpoint) {
  ASSERT_EQ(train(on_two_hosts(5)).code, ExitCode::saved);
  lose_disks({"n1"});  // and n0 has its copy
  EXPECT_EQ(train(on_two_hosts(0, {"checkpoint.download_command=exit 1"})).code, ExitCode::done);
}

// Else the run would begin again at step 0, unasked.
TEST_F(RemoteCopyTest, NothingElsewhereDoesNotMakeALossAFreshStart) {
  ASSERT_EQ(train(on_two_hosts(5, {no_copies})).code, ExitCode::saved);
  lose_disks({"n1"});
  const RunEnd end = train(on_two_hosts(0, {no_copies, "checkpoint.download_command=exit 0"}));
  EXPECT_EQ(end.code, ExitCode::checkpoint);
  EXPECT_THAT(end.message, HasSubstr("step 5 is not whole"));
  EXPECT_THAT(names_in(disk("n0") + "/checkpoints"), ElementsAre("step-00000005"));
}

// Its part of the run, which another host has, says that what comes is of another one.
TEST_F(RemoteCopyTest, AnotherRunIsNotTaken) {
  ASSERT_EQ(train(on_two_hosts(0, with_remote({no_copies, "training.steps=5"}))).code, ExitCode::done);
  lose_disks({"n0", "n1"});
  ASSERT_EQ(train(on_two_hosts(5, {no_copies})).code, ExitCode::saved);
  lose_disks({"n0"});
  const RunEnd end = train(on_two_hosts(0, {no_copies, downloading()}));
  EXPECT_EQ(end.code, ExitCode::checkpoint);
  EXPECT_THAT(end.message, HasSubstr("checkpoint.download_command brought what this run cannot go on from: a "
                                     "checkpoint of run "));
  EXPECT_THAT(names_in(disk("n0") + "/checkpoints"), testing::IsEmpty());
}

TEST_F(RemoteCopyTest, OneRankCannotSendAllOfIt) {
  const RunEnd end = train(on_two_hosts(0, {"checkpoint.upload_command=true"}));
  EXPECT_EQ(end.code, ExitCode::config);
  EXPECT_THAT(end.message, HasSubstr("checkpoint.upload_shard_command"));
}

TEST_F(LocalDirectoriesTest, OneHostHasOneDirectory) {
  const RunEnd end =
      train({.run = "run", .ranks = 2, .overrides = {}, .hosts = {"n@a", "n@a"}, .disks = {"x", "y"}});
  EXPECT_EQ(end.code, ExitCode::config);
  EXPECT_THAT(end.message, HasSubstr("is not the one that another rank of host n sees"));
}

}  // namespace
}  // namespace holdfast::test
