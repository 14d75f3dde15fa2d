// Checkpoints that the first version of the format wrote stay readable: tests/golden/checkpoint_version_1 is
// one, written by the last program that wrote that version, with the state below on two ranks.
#include <gmock/gmock.h>

#include "checkpoint/find_checkpoint.h"
#include "tests/checkpoint/saved_state.h"
#include "tests/support/memory_env.h"

namespace holdfast {
namespace {

const std::string run = HF_SOURCE_DIR "/tests/golden/checkpoint_version_1";

std::vector<StateTensor> golden_state() {
  std::vector<StateTensor> state;
  state.push_back(make_tensor("embedding.weight", "weight", DType::fp32, {3, 45}, 1));
  state.push_back(make_tensor("embedding.weight", "moment1", DType::fp32, {3, 45}, 2));
  state.push_back(make_tensor("norm.weight", "weight", DType::bf16, {4100}, 3));
  for (std::uint32_t slice = 0; slice < 2; ++slice)
    state.push_back(make_tensor("up.weight", "weight", DType::fp32, {4, 6}, 4 + slice, slice, 2));
  return state;
}

TEST(Version1Test, IsFoundVerifiedAndRead) {
  Result<std::optional<FoundCheckpoint>> found = find_checkpoint(posix_env(), run);
  HF_ASSERT_OK(found);
  ASSERT_TRUE(found.value().has_value());
  EXPECT_TRUE(found.value()->skipped.empty());
  Checkpoint& checkpoint = found.value()->checkpoint;
  EXPECT_EQ(checkpoint.manifest().step, 3u);
  EXPECT_EQ(checkpoint.manifest().generation, 1u);
  EXPECT_EQ(checkpoint.manifest().values.at("data_cursor"), "24");
  EXPECT_EQ(checkpoint.manifest().parent, std::nullopt);
  EXPECT_EQ(checkpoint.manifest().shards.size(), 2u);
  EXPECT_EQ(checkpoint.tensors().size(), 5u);
  for (const std::uint64_t parts : {1u, 2u, 3u}) expect_holds(checkpoint, golden_state(), parts);
}

// Zeros between the pieces included.
TEST(Version1Test, EveryByteIsCovered) {
  MemoryEnv env;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run)) {
    if (!entry.is_regular_file()) continue;
    const std::string content = read_file(entry.path().string());
    const auto bytes = std::as_bytes(std::span(content));
    env.put_file(entry.path().string(), std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end()));
  }
  const std::string directory = run + "/checkpoints/step-00000003";
  const auto is_whole = [&] {
    Result<Checkpoint> checkpoint = Checkpoint::open(env, directory);
    return checkpoint.ok() && checkpoint.value().verify().ok();
  };
  ASSERT_TRUE(is_whole());
  for (const auto& [path, content] : env.nodes()) {
    if (content == nullptr) continue;
    for (std::size_t offset = 0; offset < content->size(); ++offset) {
      (*content)[offset] ^= std::byte{1} << (offset % 8);
      ASSERT_FALSE(is_whole()) << path << " offset " << offset;
      (*content)[offset] ^= std::byte{1} << (offset % 8);
    }
  }
  ASSERT_TRUE(is_whole());
}

}  // namespace
}  // namespace holdfast
