// Every byte of a checkpoint matters: whichever is changed, the checkpoint is no longer whole, and the one
// before it is used. The files are copied into memory, so that it can be tried for every bit.
#include <gmock/gmock.h>

#include "checkpoint/find_checkpoint.h"
#include "tests/checkpoint/largest_allocation.h"
#include "tests/checkpoint/saved_state.h"
#include "tests/support/memory_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// Chunks of both codecs, and one that ends in the middle of a block.
std::vector<StateTensor> small_state(std::uint64_t seed) {
  std::vector<StateTensor> state = tiny_state(seed);
  StateTensor flat = make_tensor("flat.weight", "weight", DType::fp32, {1100}, seed);
  for (std::size_t i = 0; i < flat.bytes.size(); ++i) flat.bytes[i] = static_cast<std::byte>(i % 4 + seed);
  state.push_back(std::move(flat));
  return state;
}

class DamageTest : public testing::Test {
 protected:
  // Steps 1 and 2, two ranks, as files in memory.
  void SetUp() override {
    const TemporaryDirectory directory;
    FaultPoints faults;
    CheckpointStore store(posix_env(), faults, directory / "run");
    const ShardWriteOptions options{.compression = Compression::always};
    HF_ASSERT_OK(save_checkpoint(posix_env(), store, small_state(1), manifest_of_step(1), 2, options));
    HF_ASSERT_OK(save_checkpoint(posix_env(), store, small_state(2), manifest_of_step(2), 2, options));
    for (const auto& entry : fs::recursive_directory_iterator(directory / "run")) {
      if (!entry.is_regular_file()) continue;
      const std::string name = "/run" + entry.path().string().substr((directory / "run").size());
      put(name, read_file(entry.path().string()));
      if (name.starts_with(newest)) paths.push_back(name);
    }
    ASSERT_EQ(paths.size(), 3u);
    ASSERT_TRUE(is_whole());
  }

  bool is_whole() {
    Result<Checkpoint> checkpoint = Checkpoint::open(env, newest);
    return checkpoint.ok() && checkpoint.value().verify().ok();
  }
  std::int64_t found_step() {
    const Result<std::optional<FoundCheckpoint>> found = find_checkpoint(env, "/run");
    if (!found.ok() || !found.value().has_value()) return -1;
    return static_cast<std::int64_t>(found.value()->checkpoint.manifest().step);
  }
  void put(const std::string& path, std::string_view content) {
    const auto bytes = std::as_bytes(std::span(content));
    env.put_file(path, std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end()));
  }
  std::vector<std::byte>& content_of(const std::string& path) { return *env.nodes().at(path); }
  std::uint64_t total_bytes() {
    std::uint64_t bytes = 0;
    for (const std::string& path : paths) bytes += content_of(path).size();
    return bytes;
  }
  // Every byte of the newest checkpoint is replaced by each of values(byte), one at a time.
  template <typename Values>
  void expect_every_change_is_found(const Values& values) {
    for (const std::string& path : paths) {
      std::vector<std::byte>& content = content_of(path);
      for (std::size_t offset = 0; offset < content.size(); ++offset) {
        const std::byte original = content[offset];
        for (const std::byte changed : values(original)) {
          content[offset] = changed;
          ASSERT_FALSE(is_whole()) << path << " offset " << offset << " value "
                                   << std::to_integer<int>(changed);
        }
        content[offset] = original;
      }
    }
    ASSERT_TRUE(is_whole());
  }

  const std::string newest = "/run/checkpoints/step-00000002";
  MemoryEnv env;
  std::vector<std::string> paths;  // of the newest checkpoint
};

TEST_F(DamageTest, EveryBitOfEveryByteIsCovered) {
  const LargestAllocation allocation;
  expect_every_change_is_found([](std::byte original) {
    std::array<std::byte, 8> changed{};
    for (std::size_t bit = 0; bit < 8; ++bit) changed[bit] = original ^ (std::byte{1} << bit);
    return changed;
  });
  // Nothing was allocated for a number that had not been verified.
  EXPECT_LE(allocation.bytes(), 2 * total_bytes());
}

TEST_F(DamageTest, DISABLED_LongEveryValueOfEveryByteIsCovered) {
  expect_every_change_is_found([](std::byte original) {
    std::array<std::byte, 255> changed{};
    for (std::size_t i = 0; i < changed.size(); ++i) changed[i] = original ^ static_cast<std::byte>(i + 1);
    return changed;
  });
}

TEST_F(DamageTest, ThePreviousOneIsUsedAndTheDamagedFileNamed) {
  for (const std::string& path : paths) {
    std::vector<std::byte>& content = content_of(path);
    for (std::size_t offset = 0; offset < content.size(); offset += 97) {
      content[offset] ^= std::byte{32};
      const auto found = find_checkpoint(env, "/run");
      content[offset] ^= std::byte{32};
      HF_ASSERT_OK(found);
      ASSERT_EQ(found.value()->checkpoint.manifest().step, 1u) << path << " offset " << offset;
      ASSERT_EQ(found.value()->skipped.size(), 1u);
      ASSERT_THAT(found.value()->skipped[0], HasSubstr(path));
    }
  }
  EXPECT_EQ(found_step(), 2);
}

TEST_F(DamageTest, EveryTruncationIsFound) {
  const LargestAllocation allocation;
  for (const std::string& path : paths) {
    const std::vector<std::byte> original = content_of(path);
    for (std::size_t length = 0; length < original.size(); ++length) {
      content_of(path).resize(length);
      ASSERT_FALSE(is_whole()) << path << " length " << length;
      content_of(path) = original;
    }
  }
  EXPECT_EQ(found_step(), 2);
  EXPECT_LE(allocation.bytes(), 2 * total_bytes());
}

TEST_F(DamageTest, GrownMissingAndEmptyFilesAreFound) {
  for (const std::string& path : paths) {
    const MemoryEnv::Content original = env.nodes().at(path);
    const std::size_t bytes = original->size();
    for (const std::size_t grown : {1u, 4095u, 4096u}) {
      original->resize(bytes + grown);
      ASSERT_EQ(found_step(), 1) << path << " grown by " << grown;
      original->resize(bytes);
    }
    HF_ASSERT_OK(env.remove(path));
    ASSERT_EQ(found_step(), 1) << path;
    env.put_file(path, original);
  }
  EXPECT_EQ(found_step(), 2);
}

// Any file in the place of any other one of both checkpoints, and any two changed for each other.
TEST_F(DamageTest, SwappedStaleAndDuplicatedFilesAreFound) {
  const std::map<std::string, MemoryEnv::Content> original = env.nodes();
  int exchanges = 0;
  for (const std::string& path : paths) {
    for (const auto& [other, content] : original) {
      if (content == nullptr || *content == *original.at(path)) continue;
      env.put_file(path, content);
      ASSERT_FALSE(is_whole()) << other << " in the place of " << path;
      env.put_file(other, original.at(path));
      ASSERT_FALSE(is_whole()) << other << " changed for " << path;
      env.put_file(path, original.at(path));
      env.put_file(other, content);
      ++exchanges;
    }
  }
  EXPECT_EQ(exchanges, 3 * 6) << "files of the two checkpoints, and lineage.json";
  EXPECT_EQ(found_step(), 2);
}

}  // namespace
}  // namespace holdfast::test
