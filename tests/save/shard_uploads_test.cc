// checkpoint.upload_shard_command: which rank sends what, what comes last, and what a failure does.
#include <gmock/gmock.h>

#include <algorithm>

#include "checkpoint/candidates.h"
#include "parallel/comm/rank_sum.h"
#include "runtime/save/uploads.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Manifest manifest_of(std::uint64_t generation, std::uint64_t step, const std::string& config) {
  Manifest manifest;
  manifest.run_id = std::string(32, 'a');
  manifest.generation = generation;
  manifest.step = step;
  manifest.config = config;
  return manifest;
}

TEST(UploadName, TheGreatestIsTheNewestAndOtherBytesHaveAnother) {
  const std::string older = upload_name(manifest_of(0, 90, "a")),
                    newer = upload_name(manifest_of(0, 100, "a"));
  const std::string gone_back = upload_name(manifest_of(1, 20, "a"));
  EXPECT_LT(older, newer);
  EXPECT_LT(newer, gone_back);
  EXPECT_EQ(upload_name(manifest_of(0, 100, "a")), newer);
  EXPECT_NE(upload_name(manifest_of(0, 100, "b")), newer);
  EXPECT_TRUE(newer.starts_with("generation-0000-step-00000100-")) << newer;
}

// Ranks 0 and 2 of host a, 1 and 3 of host b.
TEST(UploadShares, AShardIsSentFromAHostThatHasIt) {
  const StorageDomain a{.number = 0, .host = "a"}, b{.number = 1, .host = "b"};
  const StorageDomains domains({a, b, a, b});
  const std::vector<std::uint64_t> shards = {0, 1, 2};
  const auto part = [&](const std::string& name, const std::string& content,
                        std::vector<std::uint64_t> present) {
    return UploadPart{.name = name, .content = content, .shard_count = 3, .present = std::move(present)};
  };
  struct Case {
    UploadPart of_a, of_b;
    std::vector<std::vector<std::size_t>> sent;  // by rank; empty: it cannot be sent
    std::size_t manifest_sender;
  };
  const std::vector<Case> cases = {
      {part("A", "x", {0, 2}), part("B", "x", {1}), {{0}, {1}, {2}, {}}, 0},
      {part("A", "x", shards), part("B", "x", shards), {{0}, {1}, {2}, {}}, 0},  // with copies
      {part("A", "x", shards), {}, {{0}, {}, {1, 2}, {}}, 0},                    // b is new
      {{}, part("B", "x", shards), {{}, {0, 1}, {}, {2}}, 1},                    // a is new
      {part("A", "x", {0}), part("B", "y", shards), {{}, {0, 1}, {}, {2}}, 1},   // a has an older layout's
      {part("A", "x", {0}), part("B", "x", {1}), {}, 0},
      {{}, {}, {}, 0},
  };
  for (const Case& each : cases) {
    const Result<std::vector<UploadShare>> shares = shares_of_parts({each.of_a, each.of_b, {}, {}}, domains);
    EXPECT_EQ(shares.ok(), !each.sent.empty());
    if (!shares.ok()) continue;
    for (std::size_t rank = 0; rank < each.sent.size(); ++rank) {
      EXPECT_EQ((*shares)[rank].shards, each.sent[rank]) << rank;
      EXPECT_EQ((*shares)[rank].sends_manifest, rank == each.manifest_sender);
      EXPECT_EQ((*shares)[rank].name, each.manifest_sender == 0 ? "A" : "B");
    }
  }
}

class ShardUploadsTest : public TrainingTest {
 protected:
  // A checkpoint of step 2 with a shard of each of these ranks.
  void save(int ranks) {
    ASSERT_EQ(
        train({.run = "run", .ranks = ranks, .overrides = {"training.steps=2", "optimizer.warmup_steps=0"}})
            .code,
        ExitCode::done);
  }
  std::string target() const { return run_directory("elsewhere"); }
  // Copies the file, and writes down its name.
  std::string copying() const {
    return fmt::format(
        "mkdir -p {0}/$HOLDFAST_NAME && cp $HOLDFAST_FILE {0}/$HOLDFAST_NAME/ && "
        "echo $HOLDFAST_NAME $(basename $HOLDFAST_FILE) >> {0}.log",
        target());
  }
  std::vector<std::string> sent() const {
    const Result<std::string> text = posix_env().read_text(target() + ".log");
    std::istringstream lines(text.ok() ? *text : "");
    std::vector<std::string> names;
    for (std::string line; std::getline(lines, line);) names.push_back(line);
    return names;
  }
  // Every rank offers step 2 and votes until all is over; the report of rank 0.
  UploadReport upload(int ranks, const std::string& line) {
    UploadReport report;
    const Result<void> done = run_local_ranks(ranks, [&](Communicator& communicator) -> Result<void> {
      FaultPoints faults;
      CheckpointStore store(posix_env(), faults, run_directory("run"));
      Config config;
      config.run.directory = run_directory("run");
      config.checkpoint.upload_shard_command = line;
      config.checkpoint.upload_timeout_ms = 60'000;
      Uploads uploads({.env = posix_env(),
                       .faults = faults,
                       .store = store,
                       .config = config,
                       .rank = communicator.rank(),
                       .ranks = ranks,
                       .retry_after_ms = {}});
      const Waiter waiter(posix_env(), 60'000);
      uploads.offer(2);
      while (uploads.busy()) {
        SaveVotes votes;
        uploads.vote(votes);
        HF_TRY_VOID(sum_over_ranks(communicator, waiter, votes));
        HF_TRY_VOID(uploads.advance(communicator, waiter, votes));
        posix_env().sleep_us(1000);
      }
      const std::vector<UploadReport> reports = uploads.take_reports();
      HF_CHECK(reports.size() == 1);
      if (communicator.rank() == 0) report = reports.front();
      return {};
    });
    EXPECT_TRUE(done.ok());
    return report;
  }
};

TEST_F(ShardUploadsTest, EveryRankSendsItsOwnAndTheManifestComesLast) {
  save(2);
  const UploadReport report = upload(2, copying());
  ASSERT_TRUE(report.outcome.ok()) << report.outcome.error().message;
  const Result<Manifest> manifest =
      read_manifest(posix_env(), run_directory("run") + "/checkpoints/step-00000002");
  ASSERT_TRUE(manifest.ok());
  const std::string name = upload_name(*manifest);
  std::vector<std::string> names = sent();
  ASSERT_EQ(names.size(), 3U);
  std::sort(names.begin(), names.begin() + 2);
  EXPECT_THAT(names,
              ElementsAre(name + " shard-00000.hfs", name + " shard-00001.hfs", name + " manifest.json"));
  EXPECT_TRUE(open_verified(posix_env(), target() + "/" + name).ok());
}

// As after a recovery, or on a larger machine.
TEST_F(ShardUploadsTest, AnotherNumberOfRanksSendsEveryFileOnce) {
  save(4);
  for (const int ranks : {1, 3, 4}) {
    static_cast<void>(posix_env().remove(target() + ".log").ok());
    ASSERT_TRUE(upload(ranks, copying()).outcome.ok());
    std::vector<std::string> names = sent();
    ASSERT_EQ(names.size(), 5U) << ranks;
    EXPECT_THAT(names.back(), HasSubstr("manifest.json"));
    std::ranges::sort(names);
    EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  }
}

TEST_F(ShardUploadsTest, WithoutOneShardThereIsNoManifest) {
  save(2);
  const UploadReport report =
      upload(2, "case $HOLDFAST_FILE in *shard-00001*) echo no route; exit 7;; esac; " + copying());
  ASSERT_FALSE(report.outcome.ok());
  EXPECT_THAT(report.outcome.error().message,
              HasSubstr("rank 1 (" + posix_env().host_name() +
                        "): checkpoint.upload_shard_command ended with exit code 7"));
  EXPECT_THAT(report.printed, testing::ContainsRegex("^rank [0-9]+: no route$"));
  for (const std::string& name : sent()) EXPECT_THAT(name, HasSubstr("shard-00000"));
}

TEST_F(ShardUploadsTest, BaseFilesGoWithTheShardsThatUseThem) {
  const RunEnd end =
      train({.run = "run",
             .ranks = 2,
             .overrides = {"checkpoint.every_steps=1", "model.freeze=embedding", "training.steps=2",
                           "optimizer.warmup_steps=0", "checkpoint.keep=1"}});
  ASSERT_EQ(end.code, ExitCode::done) << end.message;
  ASSERT_TRUE(upload(2, copying()).outcome.ok());
  EXPECT_THAT(sent(), Contains(HasSubstr("base-00000001")));
  const std::vector<std::string> there = posix_env().list(target()).value();
  ASSERT_EQ(there.size(), 1U);
  EXPECT_TRUE(open_verified(posix_env(), target() + "/" + there.front()).ok());
}

// By a real run: what is visible elsewhere is whole at every moment, and the last step is there at the end.
TEST_F(ShardUploadsTest, TheRunIsDoneWhenItsLastCheckpointIsThere) {
  const RunEnd end = train({.run = "run",
                            .ranks = 2,
                            .overrides = {"checkpoint.every_steps=2", "checkpoint.keep=1",
                                          "checkpoint.upload_shard_command=" + copying()}});
  ASSERT_EQ(end.code, ExitCode::done) << end.message;
  const std::vector<std::string> there = posix_env().list(target()).value();
  ASSERT_THAT(there, testing::Not(IsEmpty()));
  EXPECT_THAT(there.back(), HasSubstr("-step-00000020-"));
  for (const std::string& name : there) {
    const Result<Checkpoint> copy = open_verified(posix_env(), target() + "/" + name);
    EXPECT_TRUE(copy.ok()) << copy.error().message;
  }
  const std::string events = posix_env().read_text(run_directory("run") + "/events.jsonl").value();
  EXPECT_THAT(events, HasSubstr(R"("event":"upload")"));
}

}  // namespace
}  // namespace holdfast::test
