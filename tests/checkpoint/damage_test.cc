// Every byte of a checkpoint matters: whichever is changed, the checkpoint is no longer whole, and the one
// before it is used.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "tests/checkpoint/saved_state.h"
#include "tests/support/temporary_directory.h"

namespace holdfast {
namespace {

using testing::HasSubstr;

class DamageTest : public testing::Test {
 protected:
  DamageTest() : store(posix_env(), faults, directory / "run") {}
  void SetUp() override {
    HF_ASSERT_OK(save(posix_env(), store, tiny_state(1), manifest_of_step(1), 2));
    HF_ASSERT_OK(save(posix_env(), store, tiny_state(2), manifest_of_step(2), 2));
    for (const auto& entry : std::filesystem::directory_iterator(store.checkpoint_directory(2))) {
      files.push_back(entry.path().string());
    }
    ASSERT_EQ(files.size(), 3u);
  }
  bool is_whole() const {
    Result<Checkpoint> checkpoint = Checkpoint::open(posix_env(), store.checkpoint_directory(2));
    return checkpoint.ok() && checkpoint.value().verify().ok();
  }

  TemporaryDirectory directory;
  FaultPoints faults;
  CheckpointStore store;
  std::vector<std::string> files;
};

// One bit of each byte in turn: together with the neighbours all eight positions.
TEST_F(DamageTest, EveryByteIsCovered) {
  ASSERT_TRUE(is_whole());
  std::uint64_t flips = 0;
  for (const std::string& path : files) {
    const std::string original = read_file(path);
    const int descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(descriptor, 0);
    for (std::size_t offset = 0; offset < original.size(); ++offset, ++flips) {
      const char changed = static_cast<char>(original[offset] ^ (1 << (offset % 8)));
      ASSERT_EQ(pwrite(descriptor, &changed, 1, static_cast<off_t>(offset)), 1);
      ASSERT_FALSE(is_whole()) << path << " offset " << offset;
      ASSERT_EQ(pwrite(descriptor, &original[offset], 1, static_cast<off_t>(offset)), 1);
    }
    close(descriptor);
  }
  EXPECT_GT(flips, 16000u);
  ASSERT_TRUE(is_whole());
}

TEST_F(DamageTest, ThePreviousOneIsUsedAndTheDamagedFileNamed) {
  for (const std::string& path : files) {
    const std::size_t size = read_file(path).size();
    for (std::size_t offset = 0; offset < size; offset += 97) {
      flip_bit(path, offset, 5);
      const auto found = find_checkpoint(posix_env(), directory / "run");
      flip_bit(path, offset, 5);
      HF_ASSERT_OK(found);
      ASSERT_EQ(found.value()->checkpoint.manifest().step, 1u) << path << " offset " << offset;
      ASSERT_EQ(found.value()->skipped.size(), 1u);
      ASSERT_THAT(found.value()->skipped[0], HasSubstr(path));
    }
  }
  EXPECT_EQ(found_step(directory / "run"), 2);
}

TEST_F(DamageTest, TruncatedGrownAndMissingFilesAreFound) {
  for (const std::string& path : files) {
    const std::string original = read_file(path);
    for (std::size_t length = 0; length < original.size(); length += 53) {
      write_file(path, std::string_view(original).substr(0, length));
      ASSERT_EQ(found_step(directory / "run"), 1) << path << " length " << length;
    }
    write_file(path, original + std::string(4096, '\0'));
    ASSERT_EQ(found_step(directory / "run"), 1) << path;
    std::filesystem::remove(path);
    ASSERT_EQ(found_step(directory / "run"), 1) << path;
    write_file(path, original);
    ASSERT_EQ(found_step(directory / "run"), 2) << path;
  }
}

}  // namespace
}  // namespace holdfast
