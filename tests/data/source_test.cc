#include "runtime/data/source.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <set>

#include "tests/data/token_files.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class SourceTest : public testing::Test {
 protected:
  Result<std::unique_ptr<TokenSource>> open(const std::string& format, std::int64_t sequence_length = 4) {
    return TokenSource::open(posix_env(), {.path = path, .format = format}, sequence_length);
  }
  Result<std::unique_ptr<TokenSource>> open_bytes(const std::string& format, std::string_view bytes,
                                                  std::int64_t sequence_length = 4) {
    write_bytes(path, bytes);
    return open(format, sequence_length);
  }
  // The sentence that opening gives; checks that it is a data error that names the file.
  std::string refusal(const std::string& format, std::string_view bytes, std::int64_t sequence_length = 4) {
    const auto source = open_bytes(format, bytes, sequence_length);
    EXPECT_FALSE(source.ok());
    if (source.ok()) return "";
    EXPECT_EQ(source.error().code, ExitCode::data);
    EXPECT_THAT(source.error().message, HasSubstr(path));
    return source.error().message;
  }

  TemporaryDirectory directory;
  std::string path = directory / "tokens.bin";
};

TEST_F(SourceTest, EveryByteOfATextIsAToken) {
  const std::string text = std::string("ab\xff\0z", 5) + varied_text(1000);
  const auto source = open_bytes("text", text);
  HF_ASSERT_OK(source);
  EXPECT_EQ(source.value()->token_count(), 1005u);
  EXPECT_EQ(source.value()->vocabulary_needed(), 256);
  for (const std::size_t first : {0u, 1u, 500u, 1000u}) {
    std::vector<std::int32_t> tokens(first == 0 ? 1005 : 5);
    HF_ASSERT_OK(source.value()->read(first, tokens, 256));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_EQ(tokens[i], static_cast<unsigned char>(text[first + i])) << first + i;
    }
  }
}

TEST_F(SourceTest, LlmcShardsOfBothWidthsAreRead) {
  const auto narrow = open_bytes("llmc", llmc_v1({0, 1, 65535, 50256, 7, 9}));
  HF_ASSERT_OK(narrow);
  EXPECT_EQ(narrow.value()->token_count(), 6u);
  EXPECT_EQ(narrow.value()->vocabulary_needed(), 0);
  EXPECT_EQ(narrow.value()->vocabulary_of_format(), 50257);
  std::vector<std::int32_t> tokens(5);
  HF_ASSERT_OK(narrow.value()->read(1, tokens, 65536));
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{1, 65535, 50256, 7, 9}));
  const auto wide = open_bytes("llmc", llmc_v7({128000, 1, 2147483647, 3, 4}));
  HF_ASSERT_OK(wide);
  HF_ASSERT_OK(wide.value()->read(0, tokens, 0));
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{128000, 1, 2147483647, 3, 4}));
}

TEST_F(SourceTest, ATokenOutsideTheVocabularyIsNamed) {
  const auto source = open_bytes("llmc", llmc_v1({1, 2, 3, 4, 5, 50257, 7}));
  HF_ASSERT_OK(source);
  std::vector<std::int32_t> tokens(5);
  HF_ASSERT_OK(source.value()->read(0, tokens, 50257));
  const Result<void> read = source.value()->read(2, tokens, 50257);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ExitCode::data);
  EXPECT_THAT(
      read.error().message,
      StartsWith(path + ": token 5 is 50257, but the vocabulary has 50257 entries (largest token 50256)"));
  const auto wide = open_bytes("llmc", llmc_v7({1, 2, 3, 4, 4294967295u}));
  HF_ASSERT_OK(wide);
  EXPECT_FALSE(wide.value()->read(0, tokens, 0).ok());
}

TEST_F(SourceTest, MissingEmptyAndDirectoryAreSentences) {
  const auto missing = open("text");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ExitCode::data);
  EXPECT_THAT(missing.error().message, HasSubstr("the data file " + path + " does not exist"));
  EXPECT_THAT(refusal("text", ""), HasSubstr("is empty"));
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  const auto folder = open("text");
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(folder.error().message, HasSubstr("is a directory"));
}

TEST_F(SourceTest, TruncatedAndGrownShardsSayBothNumbers) {
  const std::string whole = llmc_v1(std::vector<std::uint16_t>(100, 1));
  EXPECT_THAT(refusal("llmc", whole.substr(0, whole.size() - 50)),
              HasSubstr("its header says 100 tokens of 2 bytes, but the file has 1174 bytes, room for 75; it "
                        "is truncated"));
  EXPECT_THAT(refusal("llmc", whole.substr(0, whole.size() - 1)), HasSubstr("it is truncated"));
  EXPECT_THAT(refusal("llmc", whole.substr(0, 1024)), HasSubstr("room for 0"));
  EXPECT_THAT(refusal("llmc", whole + "xx"), HasSubstr("it is damaged"));
  EXPECT_THAT(refusal("llmc", llmc_bytes<std::uint16_t>({1, 2, 3}, 20240520, 1, 0xffffffffLL)),
              HasSubstr("damaged"));
  EXPECT_THAT(refusal("llmc", whole.substr(0, 700)), HasSubstr("too short for the 1024-byte header"));
}

TEST_F(SourceTest, ForeignFilesAreNamed) {
  EXPECT_THAT(
      refusal("llmc", std::string(2000, 'a')),
      AllOf(HasSubstr("is not an llm.c token shard: it starts with 1633771873, expected 20240520"),
            HasSubstr(
                "the formats are \"text\" (every byte is a token), \"llmc\", \"megatron\" and \"llmq\"")));
  EXPECT_THAT(refusal("llmc", llmc_bytes<std::uint16_t>({1, 2, 3}, 20240326, 3)),
              HasSubstr("it starts with 20240326 (it looks like an llm.c model checkpoint)"));
  EXPECT_THAT(refusal("llmc", "BIN.TOK\n" + std::string(2000, '\0')),
              HasSubstr("looks like an llmq token shard"));
  EXPECT_THAT(refusal("llmc", std::string("MMIDIDX\0\0", 9) + std::string(2000, '\0')),
              HasSubstr("Megatron"));
  EXPECT_THAT(refusal("llmc", llmc_bytes<std::uint16_t>({1, 2, 3}, 20240520, 2)),
              HasSubstr("of version 2, expected version 1"));
  EXPECT_THAT(refusal("llmc", llmc_bytes<std::uint16_t>({1, 2, 3}, 20240801, 1)),
              HasSubstr("of version 1, expected version 7"));
  EXPECT_THAT(refusal("parquet", "abcdef"), HasSubstr("no data format \"parquet\""));
}

TEST_F(SourceTest, TooShortForASampleSaysWhatWouldFit) {
  EXPECT_THAT(refusal("text", "abcd", 4),
              HasSubstr("holds 4 tokens, but one sample of training.sequence_length = 4 "
                        "needs 5; set training.sequence_length to 3 or less"));
  EXPECT_THAT(refusal("llmc", llmc_v1({5}), 1), HasSubstr("holds 1 token; even the shortest sample needs 2"));
  HF_ASSERT_OK(open_bytes("text", "abcd", 3));
}

TEST_F(SourceTest, TheFingerprintSeesLengthHeadAndTail) {
  const auto fingerprint = [&](const std::string& bytes) {
    const auto source = open_bytes("text", bytes);
    EXPECT_TRUE(source.ok());
    return source.value()->fingerprint();
  };
  for (const std::size_t size : {1000u, 270336u, 3000000u}) {
    const std::string text = varied_text(size);
    const Digest original = fingerprint(text);
    EXPECT_EQ(fingerprint(text), original);
    EXPECT_NE(fingerprint(text + "x"), original);
    for (const std::size_t at : {std::size_t{0}, size - 1}) {
      std::string changed = text;
      changed[at] = static_cast<char>(changed[at] + 1);
      EXPECT_NE(fingerprint(changed), original) << size << " " << at;
    }
  }
}

TEST_F(SourceTest, OneFlippedBitAnywhereInASmallFileChangesTheFingerprint) {
  const std::size_t size = 300'000;
  std::string text = varied_text(size);
  std::set<std::string> seen;
  const auto fingerprint = [&] { return to_hex(open_bytes("text", text).value()->fingerprint()); };
  seen.insert(fingerprint());
  for (std::size_t at = 0; at < size; at += 997) {
    text[at] = static_cast<char>(text[at] ^ 1);
    EXPECT_TRUE(seen.insert(fingerprint()).second) << at;
    text[at] = static_cast<char>(text[at] ^ 1);
  }
}

// Around the length up to which files are digested whole, and far beyond it: the file is sparse, so that only
// what is read costs time.
TEST_F(SourceTest, TheFingerprintOfALargeFileSeesHeadTailAndSpreadPieces) {
  constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
  const auto fingerprint = [&](std::uint64_t size, std::optional<std::uint64_t> changed_at) {
    write_bytes(path, "");
    std::filesystem::resize_file(path, size);
    if (changed_at.has_value()) {
      std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
      file.seekp(static_cast<std::streamoff>(*changed_at));
      file.put('x');
    }
    return open("text").value()->fingerprint();
  };
  const std::uint64_t whole = 256 * mebibyte;
  const Digest of_whole = fingerprint(whole, std::nullopt);
  EXPECT_NE(fingerprint(whole, whole / 3), of_whole);
  EXPECT_NE(fingerprint(whole, whole - 1), of_whole);
  const std::uint64_t large = 3072 * mebibyte, last_piece = large - mebibyte;
  const std::int64_t begin_ns = posix_env().monotonic_ns();
  const Digest of_large = fingerprint(large, std::nullopt);
  RecordProperty("fingerprint_ms", fmt::format("{}", (posix_env().monotonic_ns() - begin_ns) / 1'000'000));
  EXPECT_NE(fingerprint(large + 1, std::nullopt), of_large);
  for (const std::uint64_t piece : {0u, 1u, 100u, 256u, 257u}) {
    const std::uint64_t offset = last_piece * piece / 257;
    EXPECT_NE(fingerprint(large, offset), of_large) << piece;
    EXPECT_NE(fingerprint(large, offset + mebibyte - 1), of_large) << piece;
  }
  EXPECT_EQ(fingerprint(large, last_piece / 257 + mebibyte + 5), of_large) << "the rule's limit: a gap";
}

TEST_F(SourceTest, FilesOver2GiBAreReadAtTheirEnd) {
  const std::uint64_t hole = std::uint64_t{3} << 30;
  write_bytes(path, llmc_bytes<std::uint16_t>({}, 20240520, 1, static_cast<std::int64_t>(hole / 2 + 5)));
  std::filesystem::resize_file(path, 1024 + hole);
  const std::vector<std::uint16_t> last = {11, 22, 33, 44, 55};
  std::ofstream(path, std::ios::binary | std::ios::app).write(reinterpret_cast<const char*>(last.data()), 10);
  for (const char* format : {"llmc", "text"}) {
    const auto source = open(format);
    HF_ASSERT_OK(source);
    const bool text = std::string(format) == "text";
    const std::uint64_t count = text ? 1024 + hole + 10 : hole / 2 + 5;
    ASSERT_EQ(source.value()->token_count(), count);
    std::vector<std::int32_t> tokens(text ? 10 : 5);
    HF_ASSERT_OK(source.value()->read(count - tokens.size(), tokens, 256));
    EXPECT_EQ(tokens, text ? (std::vector<std::int32_t>{11, 0, 22, 0, 33, 0, 44, 0, 55, 0})
                           : (std::vector<std::int32_t>{11, 22, 33, 44, 55}));
  }
}

TEST_F(SourceTest, AFailingDiskIsASentence) {
  write_bytes(path, varied_text(100));
  FaultyEnv env(posix_env());
  const auto source = TokenSource::open(env, {.path = path, .format = "text"}, 4);
  HF_ASSERT_OK(source);
  env.inject({.operation = Operation::read, .reason = EIO});
  std::vector<std::int32_t> tokens(5);
  const Result<void> read = source.value()->read(0, tokens, 256);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ExitCode::data);
  EXPECT_THAT(read.error().message, HasSubstr(path));
}

TEST(TokenSourceTest, TokensInMemoryAreReadLikeThoseOfAFile) {
  const TokenSource source = TokenSource::of(tokens_in_memory({5, 6, 7, 300'000}, "mine.txt"));
  EXPECT_EQ(source.token_count(), 4U);
  EXPECT_EQ(source.path(), "mine.txt");
  EXPECT_FALSE(source.masks_documents());
  std::vector<std::int32_t> tokens(3);
  HF_ASSERT_OK(source.read(1, tokens, /*vocabulary=*/0));
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{6, 7, 300'000}));
  const Result<void> read = source.read(1, tokens, /*vocabulary=*/7);
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().message, HasSubstr("mine.txt: token 2 is 7"));
}

TEST_F(SourceTest, TheFormatIsKnownByItsMagic) {
  const auto detect = [&](std::string_view bytes) {
    write_bytes(path, bytes);
    const Result<std::string> format = detect_format(posix_env(), path);
    return format.ok() ? format.value() : format.error().message;
  };
  EXPECT_EQ(detect(llmc_v1({1, 2})), "llmc");
  EXPECT_EQ(detect(llmc_v7({1, 2})), "llmc");
  EXPECT_EQ(detect(varied_text(5000)), "text");
  EXPECT_EQ(detect("ab"), "text");
  EXPECT_THAT(detect(""), HasSubstr("is empty"));
}

}  // namespace
}  // namespace holdfast::test
