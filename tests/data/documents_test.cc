#include "runtime/data/source.h"

#include <gmock/gmock.h>

#include "tests/data/token_files.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class DocumentsTest : public testing::Test {
 protected:
  // The first keys of the window of 6 tokens that starts at `first`.
  std::vector<std::int32_t> first_keys(const std::string& path, const std::string& format,
                                       std::uint64_t first, const DocumentRule& rule) {
    const auto source = TokenSource::open(posix_env(), {.path = path, .format = format}, 6, rule);
    EXPECT_TRUE(source.ok()) << source.error().message;
    if (!source.ok()) return {};
    std::vector<std::int32_t> window(7), inputs(6), targets(6), first_key(6);
    EXPECT_TRUE((*source)->read(first, window, 0).ok());
    const SequenceRow row = {.inputs = inputs, .targets = targets, .first_key = first_key};
    EXPECT_TRUE((*source)->fill_row(first, window, row).ok());
    return first_key;
  }

  TemporaryDirectory directory;
};

// llm.c's scripts put <|endoftext|> in front of each document; it belongs to the document that follows.
TEST_F(DocumentsTest, ShardsOfLlmcBeginDocumentsWithTheirToken) {
  const std::string path =
      write_bytes(directory / "shard", llmc_v1({50256, 1, 2, 50256, 3, 50256, 4, 5, 6, 7}));
  EXPECT_THAT(first_keys(path, "llmc", 0, {.mask = true}), ElementsAre(0, 0, 0, 3, 3, 5));
  EXPECT_THAT(first_keys(path, "llmc", 1, {.mask = true}), ElementsAre(0, 0, 2, 2, 4, 4));
  EXPECT_THAT(first_keys(path, "llmc", 1, {.mask = true, .begin_token = 2}), ElementsAre(0, 1, 1, 1, 1, 1));
  const std::string wide = write_bytes(directory / "wide", llmc_v7({9, 128000, 2, 3, 4, 5, 6, 7}));
  EXPECT_THAT(first_keys(wide, "llmc", 0, {.mask = true}), ElementsAre(0, 1, 1, 1, 1, 1));
}

TEST_F(DocumentsTest, AnEndTokenBelongsToItsOwnDocument) {
  const std::string path = write_bytes(directory / "shard", llmq_bytes({1, 2, 99, 3, 4, 99, 5, 6, 7, 99}));
  EXPECT_THAT(first_keys(path, "llmq", 0, {.mask = true, .end_token = 99}), ElementsAre(0, 0, 0, 3, 3, 3));
  EXPECT_THAT(first_keys(path, "llmq", 3, {.mask = true, .end_token = 99}), ElementsAre(0, 0, 0, 3, 3, 3));
  EXPECT_THAT(first_keys(path, "llmq", 0, {.mask = true, .begin_token = 4, .end_token = 99}),
              ElementsAre(0, 0, 0, 3, 4, 4));
}

TEST_F(DocumentsTest, ATokenThatTheVocabularyLacksWouldMaskNothing) {
  const std::string path = write_bytes(directory / "shard", llmc_v1({1, 2, 3, 4, 5, 6, 7, 8}));
  const auto checked = [&](std::int64_t vocabulary, const DocumentRule& rule) {
    const auto source = TokenSource::open(posix_env(), {.path = path, .format = "llmc"}, 6, rule);
    EXPECT_TRUE(source.ok());
    const Result<void> result = (*source)->check_document_tokens(vocabulary);
    return result.ok() ? std::string() : result.error().message;
  };
  EXPECT_EQ(checked(50257, {.mask = true}), "");
  EXPECT_EQ(checked(4000, {.mask = false}), "");
  EXPECT_THAT(checked(4000, {.mask = true}),
              HasSubstr("begin documents with token 50256, and the vocabulary"));
  EXPECT_EQ(checked(4000, {.mask = true, .begin_token = 0, .end_token = 3999}), "");
  EXPECT_THAT(checked(4000, {.mask = true, .end_token = 4000}),
              HasSubstr("data.document_end = 4000 is no token: the vocabulary has 4000 entries"));
}

TEST_F(DocumentsTest, ASourceWithoutItsMarksIsWarnedOf) {
  const auto warning = [&](const std::string& path, const std::string& format, const DocumentRule& rule) {
    const auto source = TokenSource::open(posix_env(), {.path = path, .format = format}, 6, rule);
    EXPECT_TRUE(source.ok());
    const Result<std::string> warned = (*source)->warning_of_documents();
    return warned.ok() ? *warned : warned.error().message;
  };
  const std::string path = write_bytes(directory / "shard", llmc_v1({1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(warning(path, "llmc", {.mask = false}), "");
  EXPECT_EQ(warning(path, "llmc", {.mask = true, .begin_token = 8}), "");
  EXPECT_EQ(warning(path, "llmc", {.mask = true, .begin_token = 9, .end_token = 1}), "");
  EXPECT_THAT(
      warning(path, "llmc", {.mask = true}),
      HasSubstr("has no token 50256 (all 8 tokens were looked at), so data.document_mask = true masks "
                "nothing there"));
  EXPECT_THAT(warning(path, "llmc", {.mask = true, .begin_token = 9, .end_token = 10}),
              HasSubstr("has no token 9 or 10 (all 8"));
  // A long one is not read through: its end and its middle are looked at, and what is between pieces is not.
  std::string text(std::size_t{2'000'000}, 'a');
  const auto with_line_at = [&](std::size_t place) {
    std::string with_line = text;
    with_line[place] = '\n';
    return warning(write_bytes(directory / "text", with_line), "text", {.mask = true, .end_token = '\n'});
  };
  EXPECT_EQ(with_line_at(text.size() - 1), "");
  EXPECT_EQ(with_line_at(1'007'600), "");
  EXPECT_THAT(with_line_at(20'000),
              HasSubstr("has no token 10 in 64 pieces of 16384 tokens, evenly spaced in 2000000, so "
                        "data.document_mask = true masks little or nothing there"));
}

// By document_indices, not by sequences: the first document has two of them, the third is empty.
TEST_F(DocumentsTest, AMegatronIndexSaysWhereDocumentsBegin) {
  MegatronIndex index = megatron_index(8, 2, {2, 1, 4, 5});
  index.documents = {0, 2, 3, 3, 4};
  write_bytes(directory / "set.idx", index.bytes());
  write_bytes(directory / "set.bin",
              raw_bytes(std::vector<std::uint16_t>{7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}));
  const DocumentRule rule = {.mask = true, .begin_token = 7};  // the index comes first
  EXPECT_THAT(first_keys(directory / "set", "megatron", 0, rule), ElementsAre(0, 0, 0, 3, 3, 3));
  EXPECT_THAT(first_keys(directory / "set", "megatron", 3, rule), ElementsAre(0, 0, 0, 0, 4, 4));
  EXPECT_THAT(first_keys(directory / "set", "megatron", 5, rule), ElementsAre(0, 0, 2, 2, 2, 2));
}

TEST_F(DocumentsTest, AFileThatDoesNotSayIsRefusedUnlessThatIsFine) {
  const std::string path = write_bytes(directory / "text", varied_text(100));
  const auto refused = TokenSource::open(posix_env(), {.path = path, .format = "text"}, 6, {.mask = true});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ExitCode::data);
  EXPECT_THAT(refused.error().message, HasSubstr("does not say where its documents begin"));
  const auto fine =
      TokenSource::open(posix_env(), {.path = path, .format = "text"}, 6, {.mask = true, .needed = false});
  HF_ASSERT_OK(fine);
  EXPECT_FALSE((*fine)->masks_documents());
  const std::string lines = write_bytes(directory / "lines", "ab\ncd\nefgh");
  EXPECT_THAT(first_keys(lines, "text", 0, {.mask = true, .end_token = '\n'}), ElementsAre(0, 0, 0, 3, 3, 3));
}

}  // namespace
}  // namespace holdfast::test
