#include "checkpoint/store.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "checkpoint/find_checkpoint.h"
#include "tests/checkpoint/saved_state.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

class StoreTest : public testing::Test {
 protected:
  StoreTest() : store(posix_env(), faults, directory / "run") {}

  void save_step(std::uint64_t step, std::uint64_t seed = 0) {
    HF_ASSERT_OK(
        save_checkpoint(posix_env(), store, tiny_state(seed == 0 ? step : seed), manifest_of_step(step), 1));
  }
  void damage(std::uint64_t step) {
    flip_bit(store.checkpoint_directory(step) + "/shard-00000.hfs", 4100, 0);
  }
  std::string run() const { return directory / "run"; }
  std::vector<std::string> visible() { return posix_env().list(run() + "/checkpoints").value(); }

  TemporaryDirectory directory;
  FaultPoints faults;
  CheckpointStore store;
};

TEST_F(StoreTest, AnyLayoutReadsWhatAnyLayoutWrote) {
  const std::vector<StateTensor> state = mixed_state(5);
  std::uint64_t step = 0;
  for (const std::uint64_t writers : {1u, 2u, 3u, 5u}) {
    ++step;
    HF_ASSERT_OK(save_checkpoint(posix_env(), store, state, manifest_of_step(step), writers));
    Result<Checkpoint> checkpoint = Checkpoint::open(posix_env(), store.checkpoint_directory(step));
    HF_ASSERT_OK(checkpoint);
    HF_ASSERT_OK(checkpoint.value().verify());
    EXPECT_EQ(checkpoint.value().pieces().size(), state.size() * writers);
    for (const std::uint64_t readers : {1u, 2u, 4u, 7u}) expect_holds(checkpoint.value(), state, readers);
  }
}

TEST_F(StoreTest, WhatIsNotThereIsNamed) {
  save_step(1);
  Result<Checkpoint> checkpoint = Checkpoint::open(posix_env(), store.checkpoint_directory(1));
  HF_ASSERT_OK(checkpoint);
  StateTensor other = make_tensor("head.weight", "weight", DType::fp32, {3}, 1);
  const Checkpoint::Wanted wanted{.spec = other.spec, .target = other.bytes};
  const Result<void> read = checkpoint.value().read(std::span(&wanted, 1));
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ExitCode::checkpoint);
  EXPECT_THAT(read.error().message, HasSubstr("head.weight"));
  EXPECT_THAT(read.error().message, HasSubstr(store.checkpoint_directory(1)));
}

TEST_F(StoreTest, NothingIsVisibleBeforeItIsPublished) {
  HF_ASSERT_OK(store.begin_save(7));
  HF_ASSERT_OK(write_shard_file(posix_env(), store.pending_directory(7), "shard-00000.hfs", 7, "x",
                                pieces_of(tiny_state(1), 0, 1)));
  EXPECT_EQ(found_step(run()), -1);
  EXPECT_FALSE(fs::exists(run() + "/checkpoints"));
  HF_ASSERT_OK(store.begin_save(8));
  EXPECT_FALSE(fs::exists(store.pending_directory(7)));
  EXPECT_TRUE(fs::is_empty(store.pending_directory(8)));
  HF_ASSERT_OK(store.abandon_save(8));
  EXPECT_FALSE(fs::exists(store.pending_directory(8)));
}

TEST_F(StoreTest, AWriterThatHasBeenReplacedChangesNothing) {
  Result<void> standing;
  store.fence({.epoch = 7, .check = [&] { return standing; }});
  for (const std::uint64_t step : {1, 2, 3}) save_step(step);
  Result<Checkpoint> checkpoint = Checkpoint::open(posix_env(), store.checkpoint_directory(3));
  HF_ASSERT_OK(checkpoint);
  EXPECT_EQ(checkpoint->manifest().epoch, 7u);
  HF_ASSERT_OK(store.begin_save(4));
  standing = fail(ExitCode::communication, "another writer has the run");
  const std::vector<Result<void>> refused = {store.remove_leftovers(), store.begin_save(5), store.retain(1)};
  for (const Result<void>& each : refused) EXPECT_FALSE(each.ok());
  EXPECT_TRUE(fs::exists(store.pending_directory(4))) << "it may be the other writer's";
  standing = {};
  HF_ASSERT_OK(store.begin_save(5));
  Manifest manifest = manifest_of_step(5);
  manifest.shards.push_back(write_shard_file(posix_env(), store.pending_directory(5), "shard-00000.hfs", 5,
                                             manifest.run_id, pieces_of(tiny_state(5), 0, 1))
                                .value());
  standing = fail(ExitCode::communication, "another writer has the run");
  const Result<void> published = store.publish(manifest);
  ASSERT_FALSE(published.ok());
  EXPECT_EQ(published.error().code, ExitCode::communication);
  EXPECT_THAT(visible(), ElementsAre("step-00000001", "step-00000002", "step-00000003"));
}

// The same bits are not written twice because another claim wrote them.
TEST_F(StoreTest, AnEpochMakesNoOtherCheckpoint) {
  store.fence({.epoch = 1});
  save_step(2);
  store.fence({.epoch = 2});
  save_step(2);
  EXPECT_EQ(Checkpoint::open(posix_env(), store.checkpoint_directory(2))->manifest().epoch, 1u);
}

// As a writer leaves it that dies between moving one away and putting another of the same step there.
TEST_F(StoreTest, OneThatWasMovedAwayComesBackWhenTheNextSaveBegins) {
  save_step(3);
  fs::create_directories(run() + "/.pending");
  fs::rename(store.checkpoint_directory(3), run() + "/.pending/replaced-step-00000003");
  HF_ASSERT_OK(store.begin_save(4));
  EXPECT_TRUE(fs::exists(store.checkpoint_directory(3)));
  EXPECT_EQ(found_step(run()), 3);
}

TEST_F(StoreTest, TheNewestStepIsFoundAmongOtherNames) {
  for (const std::uint64_t step : {20u, 100000000u, 5u}) save_step(step);
  fs::create_directories(run() + "/checkpoints/step-7");
  fs::create_directories(run() + "/checkpoints/notes");
  EXPECT_EQ(found_step(run()), 100000000);
  EXPECT_EQ(fs::path(store.checkpoint_directory(5)).filename(), "step-00000005");
}

TEST_F(StoreTest, SameCheckpointAgainKeepsTheOldFiles) {
  save_step(3);
  const auto before = fs::last_write_time(store.checkpoint_directory(3) + "/manifest.json");
  save_step(3);
  EXPECT_EQ(fs::last_write_time(store.checkpoint_directory(3) + "/manifest.json"), before);
  EXPECT_FALSE(fs::exists(store.pending_directory(3)));
}

TEST_F(StoreTest, OtherContentOfTheSameStepTakesItsPlace) {
  save_step(3, 100);
  save_step(3, 200);
  auto found = find_checkpoint(posix_env(), run());
  HF_ASSERT_OK(found);
  ASSERT_TRUE(found.value().has_value());
  expect_holds(found.value()->checkpoint, tiny_state(200), 1);
  EXPECT_TRUE(fs::is_empty(run() + "/.pending"));
}

TEST_F(StoreTest, DamagedOneOfTheSameStepIsReplaced) {
  save_step(2);
  save_step(3);
  damage(3);
  EXPECT_EQ(found_step(run()), 2);
  save_step(3);
  EXPECT_EQ(found_step(run()), 3);
  EXPECT_TRUE(fs::is_empty(run() + "/.pending"));
}

TEST_F(StoreTest, NoneAtAllIsNoError) {
  for (const char* name : {"missing", "run", "run/checkpoints"}) {
    if (std::string(name) != "missing") fs::create_directories(directory / name);
    const auto found =
        find_checkpoint(posix_env(), directory / (std::string(name) == "missing" ? name : "run"));
    HF_ASSERT_OK(found);
    EXPECT_FALSE(found.value().has_value());
  }
}

TEST_F(StoreTest, DamagedOnesAreNamedAndSkipped) {
  for (std::uint64_t step = 1; step <= 4; ++step) save_step(step);
  damage(4);
  write_file(store.checkpoint_directory(3) + "/manifest.json", "{}");
  damage(1);
  const auto found = find_checkpoint(posix_env(), run());
  HF_ASSERT_OK(found);
  ASSERT_TRUE(found.value().has_value());
  EXPECT_EQ(found.value()->checkpoint.manifest().step, 2u);
  ASSERT_EQ(found.value()->skipped.size(), 2u);
  EXPECT_THAT(found.value()->skipped[0],
              HasSubstr(store.checkpoint_directory(4) + "/shard-00000.hfs is damaged"));
  EXPECT_THAT(found.value()->skipped[1], HasSubstr("step-00000003/manifest.json is not a Holdfast manifest"));
}

TEST_F(StoreTest, OnlyDamagedOnesIsAnErrorNotAFreshStart) {
  for (std::uint64_t step = 1; step <= 2; ++step) {
    save_step(step);
    damage(step);
  }
  const auto found = find_checkpoint(posix_env(), run());
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, ExitCode::checkpoint);
  EXPECT_THAT(found.error().message, HasSubstr("holds 2 checkpoints, none of them whole"));
  EXPECT_THAT(found.error().message, HasSubstr("step-00000001/shard-00000.hfs"));
  EXPECT_THAT(found.error().message, HasSubstr("step-00000002/shard-00000.hfs"));
}

TEST_F(StoreTest, OneDirectoryCanBeNamed) {
  save_step(1);
  save_step(2);
  EXPECT_EQ(found_step(store.checkpoint_directory(1)), 1);
  EXPECT_EQ(found_step(store.checkpoint_directory(1) + "/"), 1);
  fs::copy(store.checkpoint_directory(1), directory / "best");
  EXPECT_EQ(found_step(directory / "best"), 1);
  damage(1);
  EXPECT_FALSE(find_checkpoint(posix_env(), store.checkpoint_directory(1)).ok());
  fs::remove(store.checkpoint_directory(2) + "/manifest.json");
  EXPECT_FALSE(find_checkpoint(posix_env(), store.checkpoint_directory(2)).ok());
  const auto file = find_checkpoint(posix_env(), store.checkpoint_directory(1) + "/manifest.json");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message, HasSubstr("is a file"));
}

TEST_F(StoreTest, ADirectoryUnderAnotherStepsNameIsNotTrusted) {
  save_step(1);
  fs::rename(store.checkpoint_directory(1), store.checkpoint_directory(9));
  const auto found = find_checkpoint(posix_env(), run());
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(found.error().message, HasSubstr("is of step 1, but its directory says step 9"));
}

TEST_F(StoreTest, AShardOfAnotherStepIsFoundOut) {
  save_step(1);
  save_step(2);
  fs::copy_file(store.checkpoint_directory(1) + "/shard-00000.hfs",
                store.checkpoint_directory(2) + "/shard-00000.hfs", fs::copy_options::overwrite_existing);
  const auto found = find_checkpoint(posix_env(), run());
  HF_ASSERT_OK(found);
  EXPECT_EQ(found.value()->checkpoint.manifest().step, 1u);
  ASSERT_EQ(found.value()->skipped.size(), 1u);
  EXPECT_THAT(found.value()->skipped[0],
              HasSubstr("was written at step 1, the manifest beside it is of step 2"));
}

TEST_F(StoreTest, ALaterGenerationIsNewerThanALaterStep) {
  save_step(30);
  Manifest manifest = manifest_of_step(20);
  manifest.generation = 1;
  HF_ASSERT_OK(save_checkpoint(posix_env(), store, tiny_state(9), manifest, 1));
  EXPECT_EQ(found_step(run()), 20);
}

TEST_F(StoreTest, AMissingPieceIsNotWhole) {
  Manifest manifest = manifest_of_step(1);
  HF_ASSERT_OK(store.begin_save(1));
  const std::vector<StateTensor> state = mixed_state(1);
  Result<ShardFile> shard = write_shard_file(posix_env(), store.pending_directory(1), "shard-00000.hfs", 1,
                                             manifest.run_id, pieces_of(state, 0, 2));
  HF_ASSERT_OK(shard);
  manifest.shards.push_back(std::move(shard).value());
  HF_ASSERT_OK(store.publish(manifest));
  const auto found = find_checkpoint(posix_env(), run());
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(found.error().message, HasSubstr("embedding.weight"));
}

// The checkpoint that is published records itself in the same file.
TEST_F(StoreTest, ARollbackStaysThatIsRecordedWhileAnotherThreadPublishes) {
  save_step(1);
  const std::string run_id = manifest_of_step(1).run_id;
  std::atomic<bool> ended = false;
  std::thread publisher([&] {
    for (std::uint64_t step = 2; step <= 150; ++step) save_step(step);
    ended = true;
  });
  std::uint64_t recorded = 0;
  for (; !ended; ++recorded) {
    posix_env().sleep_us(300);  // the other thread gets its turn
    const Generation generation = {.parent = {.generation = recorded, .step = 1'000}, .reason = "a test"};
    HF_ASSERT_OK(store.record_rollback(run_id, generation));
  }
  publisher.join();
  const Result<Lineage> lineage = read_lineage(posix_env(), run());
  HF_ASSERT_OK(lineage);
  EXPECT_EQ(lineage->current(), recorded);
  EXPECT_EQ(lineage->newest_checkpoint.value().step, 150U);
}

TEST_F(StoreTest, RetentionKeepsTheNewest) {
  for (std::uint64_t step = 1; step <= 5; ++step) save_step(step);
  HF_ASSERT_OK(store.retain(5));
  EXPECT_EQ(visible().size(), 5u);
  HF_ASSERT_OK(store.retain(2));
  EXPECT_THAT(visible(), ElementsAre("step-00000004", "step-00000005"));
  EXPECT_TRUE(fs::is_empty(run() + "/.pending"));
}

TEST_F(StoreTest, RetentionLeavesThoseForGoodAndThoseInUse) {
  store.keep_for_good(3);
  store.set_in_use({2, 4});
  for (std::uint64_t step = 1; step <= 8; ++step) save_step(step);
  HF_ASSERT_OK(store.retain(2));
  EXPECT_THAT(visible(), ElementsAre("step-00000002", "step-00000003", "step-00000004", "step-00000006",
                                     "step-00000007", "step-00000008"));
  store.set_in_use({});
  HF_ASSERT_OK(store.retain(2));
  EXPECT_THAT(visible(), ElementsAre("step-00000003", "step-00000006", "step-00000007", "step-00000008"));
}

// The one before is what a run goes back to; the one after takes its place later.
TEST_F(StoreTest, RetentionLeavesOneBeforeAStepAndOneAfter) {
  store.keep_around(0);
  for (std::uint64_t step = 1; step <= 5; ++step) save_step(step);
  HF_ASSERT_OK(store.retain(1));
  EXPECT_THAT(visible(), ElementsAre("step-00000001", "step-00000005"));
  store.keep_around(4);
  for (std::uint64_t step = 6; step <= 8; ++step) save_step(step);
  HF_ASSERT_OK(store.retain(2));
  EXPECT_THAT(visible(), ElementsAre("step-00000001", "step-00000005", "step-00000007", "step-00000008"));
  store.keep_around(5);
  save_step(9);
  HF_ASSERT_OK(store.retain(2));
  EXPECT_THAT(visible(), ElementsAre("step-00000005", "step-00000007", "step-00000008", "step-00000009"));
  store.keep_around(9);
  HF_ASSERT_OK(store.retain(2));
  EXPECT_THAT(visible(), ElementsAre("step-00000008", "step-00000009"));
}

TEST_F(StoreTest, RetentionCountsOnlyWholeOnes) {
  for (std::uint64_t step = 1; step <= 5; ++step) save_step(step);
  damage(5);
  fs::remove(store.checkpoint_directory(3) + "/shard-00000.hfs");
  HF_ASSERT_OK(store.retain(2));
  EXPECT_THAT(visible(), ElementsAre("step-00000002", "step-00000003", "step-00000004", "step-00000005"));
  HF_ASSERT_OK(store.retain(1));
  EXPECT_THAT(visible(), ElementsAre("step-00000004", "step-00000005"));
  EXPECT_EQ(found_step(run()), 4);
}

// One that was read stays as good as it was until it goes; then the newest is read.
TEST_F(StoreTest, RetentionReadsOneOfThoseThatStay) {
  for (std::uint64_t step = 1; step <= 3; ++step) save_step(step);
  HF_ASSERT_OK(store.retain(2));  // reads 3
  save_step(4);
  damage(4);
  HF_ASSERT_OK(store.retain(2));
  EXPECT_THAT(visible(), ElementsAre("step-00000003", "step-00000004"));
  save_step(5);
  HF_ASSERT_OK(store.retain(2));  // 3 would go, so 5 is read
  EXPECT_THAT(visible(), ElementsAre("step-00000004", "step-00000005"));
  save_step(6);
  damage(6);
  save_step(7);
  damage(7);
  HF_ASSERT_OK(store.retain(2));  // 5 would go, and nothing newer is whole
  EXPECT_EQ(found_step(run()), 5);
}

TEST_F(StoreTest, RetentionNeverRemovesTheLastHope) {
  for (std::uint64_t step = 1; step <= 3; ++step) {
    save_step(step);
    damage(step);
  }
  HF_ASSERT_OK(store.retain(1));
  EXPECT_EQ(visible().size(), 3u);
}

}  // namespace
}  // namespace holdfast::test
