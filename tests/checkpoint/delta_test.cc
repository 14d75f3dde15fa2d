// Delta: constant pieces are written once, and every checkpoint is whole by itself.
#include <gmock/gmock.h>

#include "checkpoint/shard_format.h"
#include "tests/checkpoint/saved_state.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

class DeltaTest : public testing::Test {
 protected:
  DeltaTest() : store(posix_env(), faults, directory / "run"), state(mixed_state(1)) {}

  Result<void> save_step(Env& env, std::uint64_t step, std::uint64_t ranks) {
    return save_checkpoint(env, store, state, manifest_of_step(step), ranks,
                           {.compression = Compression::always,
                            .is_constant = [](const ShardSpec& spec) { return spec.kind != "moment1"; },
                            .parent_directory = store.newest_directory()});
  }
  // Changes the one piece that is not constant.
  void change_moments(std::uint64_t seed) {
    state[1] = make_tensor("embedding.weight", "moment1", DType::fp32, {5, 3000}, seed);
  }
  std::vector<std::string> names_in(std::uint64_t step) {
    return posix_env().list(store.checkpoint_directory(step)).value();
  }
  std::uint64_t shard_bytes(std::uint64_t step) {
    std::uint64_t bytes = 0;
    const Result<Checkpoint> checkpoint = Checkpoint::open(posix_env(), store.checkpoint_directory(step));
    for (const ShardFile& shard : checkpoint.value().manifest().shards) bytes += shard.bytes;
    return bytes;
  }
  void expect_whole(std::uint64_t step, std::uint64_t parts = 3) {
    Result<Checkpoint> checkpoint = Checkpoint::open(posix_env(), store.checkpoint_directory(step));
    HF_ASSERT_OK(checkpoint);
    HF_ASSERT_OK(checkpoint.value().verify());
    expect_holds(checkpoint.value(), state, parts);
  }

  TemporaryDirectory directory;
  FaultPoints faults;
  CheckpointStore store;
  std::vector<StateTensor> state;
};

TEST_F(DeltaTest, ConstantPiecesAreWrittenOnce) {
  HF_ASSERT_OK(save_step(posix_env(), 1, 1));
  ASSERT_EQ(names_in(1).size(), 3u);
  const std::string base = names_in(1)[0];
  EXPECT_THAT(base, HasSubstr("base-00000001-"));
  EXPECT_GT(fs::file_size(store.checkpoint_directory(1) + "/" + base), 2 * shard_format::chunk_bytes);
  change_moments(20);
  HF_ASSERT_OK(save_step(posix_env(), 2, 1));
  EXPECT_EQ(names_in(2), names_in(1));
  EXPECT_EQ(fs::hard_link_count(store.checkpoint_directory(2) + "/" + base), 2u);
  for (const std::uint64_t step : {1u, 2u}) EXPECT_LT(shard_bytes(step), shard_format::chunk_bytes / 4);
  expect_whole(2);
}

// Frozen memory that something has written to is no reason to save what was there before.
TEST_F(DeltaTest, AConstantPieceThatChangedIsWritten) {
  HF_ASSERT_OK(save_step(posix_env(), 1, 1));
  // One byte of the middle chunk of the last tensor.
  state.back().bytes[shard_format::chunk_bytes + 77] ^= std::byte{1};
  HF_ASSERT_OK(save_step(posix_env(), 2, 1));
  EXPECT_GT(shard_bytes(2), shard_format::chunk_bytes);
  EXPECT_LT(shard_bytes(2), 3 * shard_format::chunk_bytes / 2);
  expect_whole(2);
}

TEST_F(DeltaTest, ACheckpointOutlivesTheOnesThatItRefersTo) {
  for (std::uint64_t step = 1; step <= 5; ++step) {
    change_moments(step);
    HF_ASSERT_OK(save_step(posix_env(), step, 1));
    HF_ASSERT_OK(store.retain(1));
    expect_whole(step);
  }
  EXPECT_THAT(posix_env().list(directory / "run/checkpoints").value(), ElementsAre("step-00000005"));
  ASSERT_EQ(names_in(5).size(), 3u);
  EXPECT_THAT(names_in(5)[0], HasSubstr("base-00000001-"));
  // Also copied away from the others.
  fs::copy(store.checkpoint_directory(5), directory / "copy");
  fs::remove_all(directory / "run");
  EXPECT_EQ(found_step(directory / "copy"), 5);
}

TEST_F(DeltaTest, NothingIsWrittenAgainByOtherRanksWithTheSamePieces) {
  HF_ASSERT_OK(save_step(posix_env(), 1, 2));
  HF_ASSERT_OK(save_step(posix_env(), 2, 2));
  EXPECT_EQ(names_in(2).size(), 1u + 2u + 2u);
  EXPECT_EQ(names_in(2), names_in(1));
  expect_whole(2);
  // Another layout: only chunks that begin at the same place are the same ones.
  HF_ASSERT_OK(save_step(posix_env(), 3, 1));
  EXPECT_THAT(names_in(3)[0], HasSubstr("base-00000003-"));
  expect_whole(3);
  HF_ASSERT_OK(save_step(posix_env(), 4, 3));
  expect_whole(4);
  HF_ASSERT_OK(save_step(posix_env(), 5, 2));
  expect_whole(5);
}

TEST_F(DeltaTest, WithoutLinksEverythingIsWritten) {
  HF_ASSERT_OK(save_step(posix_env(), 1, 1));
  FaultyEnv env(posix_env());
  env.inject({.operation = Operation::link, .for_ever = true, .reason = EPERM});
  HF_ASSERT_OK(save_step(env, 2, 1));
  EXPECT_EQ(env.failure_count(), 1u);
  EXPECT_THAT(names_in(2), ElementsAre("manifest.json", "shard-00000.hfs"));
  expect_whole(2);
}

TEST_F(DeltaTest, ADamagedParentIsNoReasonNotToSave) {
  HF_ASSERT_OK(save_step(posix_env(), 1, 1));
  const std::string shard = store.checkpoint_directory(1) + "/shard-00000.hfs";
  flip_bit(shard, fs::file_size(shard) - 100, 1);
  HF_ASSERT_OK(save_step(posix_env(), 2, 1));
  ASSERT_EQ(names_in(2).size(), 3u);
  EXPECT_THAT(names_in(2)[0], HasSubstr("base-00000002-"));
  expect_whole(2);
}

TEST_F(DeltaTest, WithoutDigestsThereIsNothingToReferTo) {
  HF_ASSERT_OK(save_checkpoint(posix_env(), store, state, manifest_of_step(1), 1));
  HF_ASSERT_OK(save_step(posix_env(), 2, 1));
  ASSERT_EQ(names_in(2).size(), 3u);
  EXPECT_THAT(names_in(2)[0], HasSubstr("base-00000002-"));
}

TEST_F(DeltaTest, DamageOfABaseFileIsNamed) {
  HF_ASSERT_OK(save_step(posix_env(), 1, 1));
  HF_ASSERT_OK(save_step(posix_env(), 2, 1));
  const std::string base = store.checkpoint_directory(2) + "/" + names_in(2)[0];
  const auto problem = [&] {
    Result<Checkpoint> checkpoint = Checkpoint::open(posix_env(), store.checkpoint_directory(2));
    const Result<void> verified = checkpoint.ok() ? checkpoint.value().verify() : outcome_of(checkpoint);
    return verified.ok() ? std::string() : verified.error().message;
  };
  flip_bit(base, 4100, 0);  // in the first chunk
  EXPECT_THAT(problem(), HasSubstr(base + " is damaged: tensor 'embedding.weight'"));
  flip_bit(base, 4100, 0);
  EXPECT_EQ(problem(), "");
  const std::string content = read_file(base);
  fs::remove(base);
  EXPECT_THAT(problem(), HasSubstr("shard-00000.hfs beside it names this file"));
  write_file(base, content.substr(0, content.size() - 4096));
  EXPECT_THAT(problem(), HasSubstr("bytes long, shard-00000.hfs beside it says"));
  write_file(base, std::string(content.size(), 'x'));
  EXPECT_THAT(problem(), HasSubstr(base));
}

TEST_F(DeltaTest, TheManifestNamesItsParentAndItsTensors) {
  HF_ASSERT_OK(save_step(posix_env(), 1, 2));
  HF_ASSERT_OK(save_step(posix_env(), 4, 2));
  const Result<Checkpoint> first = Checkpoint::open(posix_env(), store.checkpoint_directory(1));
  const Result<Checkpoint> second = Checkpoint::open(posix_env(), store.checkpoint_directory(4));
  HF_ASSERT_OK(second);
  EXPECT_EQ(first.value().manifest().parent, std::nullopt);
  EXPECT_EQ(second.value().manifest().parent, (ParentCheckpoint{.generation = 0, .step = 1}));
  ASSERT_EQ(second.value().manifest().tensors.size(), 6u);  // the slices of one are one
  EXPECT_EQ(second.value().manifest().tensors.back().slices, 2u);
  EXPECT_EQ(second.value().tensors().size(), 7u);
}

}  // namespace
}  // namespace holdfast::test
