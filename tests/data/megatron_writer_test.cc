// What MegatronWriter writes is what open_megatron() reads, and it is whole or not there.
#include <gmock/gmock.h>

#include <filesystem>

#include "runtime/data/megatron.h"
#include "tests/data/token_files.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class MegatronWriterTest : public testing::Test {
 protected:
  std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
      found.push_back(entry.path().filename().string());
    std::ranges::sort(found);
    return found;
  }
  // Writes documents that end with the largest token of the vocabulary.
  void expect_type(std::int64_t vocabulary, TokenType type) {
    SCOPED_TRACE(vocabulary);
    const std::string name = directory / std::to_string(vocabulary);
    const auto largest = static_cast<std::uint32_t>(vocabulary - 1);
    auto writer = MegatronWriter::create(posix_env(), name, vocabulary);
    HF_ASSERT_OK(writer);
    HF_ASSERT_OK((*writer)->append(std::vector<std::uint32_t>{0, 1}));
    HF_ASSERT_OK((*writer)->append(std::vector<std::uint32_t>{largest}));
    HF_ASSERT_OK((*writer)->end_document());
    HF_ASSERT_OK((*writer)->append(std::vector<std::uint32_t>{2, largest}));
    HF_ASSERT_OK((*writer)->end_document());
    EXPECT_FALSE(std::filesystem::exists(name + ".bin"));
    HF_ASSERT_OK((*writer)->finish());
    const auto file = open_megatron(posix_env(), name, true);
    HF_ASSERT_OK(file);
    EXPECT_EQ(file->type, type);
    EXPECT_EQ(file->token_count, 5u);
    EXPECT_THAT(file->document_starts.value(), ElementsAre(0, 3));
    const auto source = TokenSource::open(posix_env(), {.path = name, .format = "megatron"}, 4);
    HF_ASSERT_OK(source);
    std::vector<std::int32_t> tokens(5);
    HF_ASSERT_OK((*source)->read(0, tokens, vocabulary));
    EXPECT_THAT(tokens, ElementsAre(0, 1, largest, 2, largest));
  }

  TemporaryDirectory directory;
};

TEST_F(MegatronWriterTest, TheVocabularySaysHowWideTokensAre) {
  expect_type(256, TokenType::u16);
  expect_type(65536, TokenType::u16);
  expect_type(65537, TokenType::i32);
  expect_type(200000, TokenType::i32);
}

TEST_F(MegatronWriterTest, WhatIsNotFinishedGoesAndWhatIsThereStays) {
  const std::string name = directory / "set";
  {
    auto writer = MegatronWriter::create(posix_env(), name, 300);
    HF_ASSERT_OK(writer);
    HF_ASSERT_OK((*writer)->append(std::vector<std::uint32_t>{1}));
    EXPECT_THAT(names(), ElementsAre("set.bin.partial", "set.idx.partial"));
  }
  EXPECT_TRUE(names().empty());
  write_bytes(name + ".bin.partial", "of a writer that was killed");
  HF_ASSERT_OK(MegatronWriter::create(posix_env(), name, 300));
  write_bytes(name + ".idx", "somebody's");
  const auto refused = MegatronWriter::create(posix_env(), name, 300);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("set.idx exists already; remove it"));
  EXPECT_THAT(names(), ElementsAre("set.idx"));
}

}  // namespace
}  // namespace holdfast::test
