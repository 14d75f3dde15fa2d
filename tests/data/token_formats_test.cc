// Megatron datasets and llmq shards: what is read, and what is refused. tests/system/data_test.py reads files
// that another writer made.
#include <gmock/gmock.h>

#include <filesystem>
#include <numeric>

#include "runtime/data/source.h"
#include "tests/data/token_files.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TokenFormatsTest : public testing::Test {
 protected:
  Result<std::unique_ptr<TokenSource>> open(const std::string& path, const std::string& format,
                                            const DocumentRule& documents = {}) {
    return TokenSource::open(posix_env(), {.path = path, .format = format}, 4, documents);
  }
  std::string sentence(const std::string& path, const std::string& format) {
    const auto source = open(path, format);
    EXPECT_FALSE(source.ok());
    if (source.ok()) return "";
    EXPECT_EQ(source.error().code, ExitCode::data);
    return source.error().message;
  }
  std::string refusal_of_shard(std::string_view bytes) {
    return sentence(write_bytes(directory / "shard.bin", bytes), "llmq");
  }
  std::string refusal_of_index(const MegatronIndex& index) {
    write_bytes(directory / "set.idx", index.bytes());
    return sentence(directory / "set", "megatron");
  }
  void write_set(const MegatronIndex& index, const std::string& data) {
    write_bytes(directory / "set.idx", index.bytes());
    write_bytes(directory / "set.bin", data);
  }
  template <typename Token>
  void expect_type(std::uint8_t type, std::vector<Token> tokens) {
    SCOPED_TRACE(int{type});
    write_set(megatron_index(type, sizeof(Token), {2, 0, 4}), raw_bytes(tokens));
    for (const char* name : {"set", "set.bin", "set.idx"}) {
      const auto source = open(directory / name, "megatron");
      HF_ASSERT_OK(source);
      ASSERT_EQ((*source)->token_count(), 6u);
      EXPECT_EQ((*source)->vocabulary_of_format(), 0);
      std::vector<std::int32_t> read(5);
      HF_ASSERT_OK((*source)->read(1, read, 0));
      EXPECT_TRUE(std::equal(read.begin(), read.end(), tokens.begin() + 1));
      EXPECT_EQ(detect_format(posix_env(), directory / name).value(), "megatron");
    }
  }

  TemporaryDirectory directory;
};

TEST_F(TokenFormatsTest, MegatronTokensOfEveryType) {
  expect_type<std::uint8_t>(1, {0, 1, 127, 128, 255, 9});
  expect_type<std::int8_t>(2, {0, 1, 127, 3, 4, 5});
  expect_type<std::int16_t>(3, {0, 1, 32767, 3, 4, 5});
  expect_type<std::int32_t>(4, {0, 70'000, 2'147'483'647, 3, 4, 5});
  expect_type<std::int64_t>(5, {0, 70'000, 2'147'483'647, 3, 4, 5});
  expect_type<std::uint16_t>(8, {0, 50'256, 65'535, 3, 4, 5});
}

// More tokens than are read at once, from places that no piece begins at.
TEST_F(TokenFormatsTest, LongReadsAreWhole) {
  std::vector<std::int64_t> tokens(9000);
  std::iota(tokens.begin(), tokens.end(), 66'000);
  write_set(megatron_index(5, 8, {9000}), raw_bytes(tokens));
  const auto source = open(directory / "set", "megatron");
  HF_ASSERT_OK(source);
  std::vector<std::int32_t> read(8990);
  HF_ASSERT_OK((*source)->read(7, read, 75'000));
  EXPECT_TRUE(std::equal(read.begin(), read.end(), tokens.begin() + 7));
}

TEST_F(TokenFormatsTest, TokensThatAreNoneAreNamed) {
  std::vector<std::int32_t> read(6);
  write_set(megatron_index(3, 2, {6}), raw_bytes(std::vector<std::int16_t>{1, 2, 3, -4, 5, 6}));
  auto source = open(directory / "set", "megatron");
  HF_ASSERT_OK(source);
  EXPECT_THAT((*source)->read(0, read, 100).error().message, HasSubstr("token 3 is -4, expected 0 or more"));
  write_set(megatron_index(5, 8, {6}), raw_bytes(std::vector<std::int64_t>{1, 2, 1LL << 40, -4, 5, 6}));
  source = open(directory / "set", "megatron");
  HF_ASSERT_OK(source);
  EXPECT_THAT((*source)->read(0, read, 0).error().message, HasSubstr("token 2 is 1099511627776, but"));
}

TEST_F(TokenFormatsTest, AMegatronIndexThatDoesNotFitIsRefused) {
  const std::vector<std::uint16_t> tokens = {1, 2, 3, 4, 5, 6};
  const MegatronIndex good = megatron_index(8, 2, {2, 4});
  write_set(good, raw_bytes(tokens));
  HF_ASSERT_OK(open(directory / "set", "megatron"));
  const auto with = [&](auto change) {
    MegatronIndex index = good;
    change(index);
    return refusal_of_index(index);
  };
  using I = MegatronIndex;
  EXPECT_THAT(with([](I& i) { i.magic[0] = 'X'; }), HasSubstr("is not the index of a Megatron dataset"));
  EXPECT_THAT(with([](I& i) { i.version = 2; }), HasSubstr("of version 2, expected version 1"));
  EXPECT_THAT(with([](I& i) { i.type = 6; }), HasSubstr("holds floating-point numbers (type 6)"));
  EXPECT_THAT(with([](I& i) { i.type = 9; }), HasSubstr("it names the type 9, expected 1 (u8)"));
  EXPECT_THAT(with([](I& i) { i.modes = "x"; }),
              AllOf(HasSubstr("2 sequences and 3 document indices, which does not fit its 83 bytes"),
                    HasSubstr("copy both files or write them again")));
  EXPECT_THAT(with([](I& i) { i.lengths[0] = -2; }), HasSubstr("sequence 0 has -2 tokens"));
  EXPECT_THAT(with([](I& i) { i.offsets[1] = 2; }), HasSubstr("sequence 1 begins at byte 2 of"));
  EXPECT_THAT(with([](I& i) { i.offsets[0] = 2; }), HasSubstr("sequence 0 begins at byte 2 of"));
  EXPECT_THAT(with([](I& i) { i.lengths[1] = 3; }), HasSubstr("its 2 sequences take 10 bytes, but"));
  EXPECT_THAT(with([](I& i) { i.lengths[1] = 5; }), HasSubstr("take at least 14 bytes, but"));
  EXPECT_THAT(with([](I& i) { i.documents = {1, 1, 2}; }), HasSubstr("document 0 begins with sequence 1"));
  EXPECT_THAT(with([](I& i) { i.documents = {0, 2, 1}; }), HasSubstr("document 2 begins with sequence 1"));
  EXPECT_THAT(with([](I& i) { i.documents = {0, 1, 1}; }), HasSubstr("end with sequence 1, expected 2"));
  EXPECT_THAT(with([](I& i) { i.documents = {0, 1, 3}; }), HasSubstr("document 2 begins with sequence 3"));
  EXPECT_THAT(with([](I& i) { i.documents = {}; }), HasSubstr("end with sequence 0, expected 2"));
  write_bytes(directory / "set.idx", good.bytes().substr(0, 20));
  EXPECT_THAT(sentence(directory / "set", "megatron"), HasSubstr("too short for its 34-byte header"));
  MegatronIndex with_modes = good;
  with_modes.modes = "ab";
  write_bytes(directory / "set.idx", with_modes.bytes());
  HF_ASSERT_OK(open(directory / "set", "megatron"));
}

TEST_F(TokenFormatsTest, AMegatronDatasetIsTwoFiles) {
  write_set(megatron_index(8, 2, {6}), raw_bytes(std::vector<std::uint16_t>(6)));
  std::filesystem::remove(directory / "set.bin");
  EXPECT_THAT(
      sentence(directory / "set.idx", "megatron"),
      AllOf(HasSubstr("set.bin does not exist; a Megatron dataset is the two files"), HasSubstr("set.idx")));
  std::filesystem::remove(directory / "set.idx");
  EXPECT_THAT(sentence(directory / "set", "megatron"), HasSubstr("set.idx does not exist"));
}

TEST_F(TokenFormatsTest, TheFingerprintCoversTheIndex) {
  const std::string data = raw_bytes(std::vector<std::uint16_t>(6));
  write_set(megatron_index(8, 2, {2, 4}), data);
  const Digest one = (*open(directory / "set", "megatron"))->fingerprint();
  write_set(megatron_index(8, 2, {3, 3}), data);
  EXPECT_NE((*open(directory / "set", "megatron"))->fingerprint(), one);
}

TEST_F(TokenFormatsTest, LlmqShardsOfBothVersions) {
  const std::vector<std::int32_t> tokens = {5, 99'999, 70'000, 0, 1};
  for (const std::int32_t version : {1, 2}) {
    const auto source = open(write_bytes(directory / "shard.bin", llmq_bytes(tokens, version)), "llmq");
    HF_ASSERT_OK(source);
    EXPECT_EQ((*source)->vocabulary_of_format(), version == 1 ? 0 : 100'000);
    std::vector<std::int32_t> read(5);
    HF_ASSERT_OK((*source)->read(0, read, 100'000));
    EXPECT_EQ(read, tokens);
    EXPECT_EQ(detect_format(posix_env(), directory / "shard.bin").value(), "llmq");
  }
}

TEST_F(TokenFormatsTest, AnLlmqShardThatDoesNotFitIsRefused) {
  const std::string good = llmq_bytes({1, 2, 3, 4, 5}, 2, {true, true, false, true, true});
  const auto with = [&](std::size_t field, std::int32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + 4 * field, &value, 4);
    return refusal_of_shard(bytes);
  };
  HF_ASSERT_OK(open(write_bytes(directory / "shard.bin", good), "llmq"));
  EXPECT_THAT(with(1, 7), HasSubstr("is not an llmq token shard"));
  EXPECT_THAT(with(2, 3), HasSubstr("of version 3, expected version 1 or 2"));
  EXPECT_THAT(with(3, 2), HasSubstr("of 2 bytes per token, expected 4"));
  EXPECT_THAT(with(4, 9), AllOf(HasSubstr("says 9 tokens of 4 bytes and a mask"), HasSubstr("truncated")));
  EXPECT_THAT(with(4, -1), HasSubstr("damaged"));
  EXPECT_THAT(with(5, 0), HasSubstr("a vocabulary of 0"));
  EXPECT_THAT(with(6, 0), HasSubstr("damaged"));  // the mask is one byte too many then
  EXPECT_THAT(refusal_of_shard(good.substr(0, 100)),
              HasSubstr("too short for the 1024-byte header of an llmq"));
  EXPECT_THAT(refusal_of_shard(llmc_v1({1, 2, 3, 4, 5})),
              HasSubstr("it looks like an llm.c token shard of GPT-2, format = \"llmc\""));
}

// A target counts when the bit of its own token is set, wherever the window begins.
TEST_F(TokenFormatsTest, MaskedTokensAreNoTargets) {
  std::vector<std::int32_t> tokens(1000);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<bool> mask;
  for (std::size_t i = 0; i < tokens.size(); ++i) mask.push_back(i * i % 7 < 3);
  const auto source = open(write_bytes(directory / "shard.bin", llmq_bytes(tokens, 2, mask)), "llmq");
  HF_ASSERT_OK(source);
  for (const std::uint64_t first : {0u, 1u, 6u, 7u, 8u, 985u}) {
    std::vector<std::int32_t> window(15), inputs(14), targets(14);
    HF_ASSERT_OK((*source)->read(first, window, 1000));
    const Result<std::uint64_t> counted =
        (*source)->fill_row(first, window, {.inputs = inputs, .targets = targets, .first_key = {}});
    HF_ASSERT_OK(counted);
    std::uint64_t expected = 0;
    for (std::size_t t = 0; t < 14; ++t) {
      ASSERT_EQ(inputs[t], static_cast<std::int32_t>(first + t));
      const bool counts = mask[first + t + 1];
      ASSERT_EQ(targets[t], counts ? inputs[t] + 1 : uncounted_target) << first << " " << t;
      expected += counts ? 1 : 0;
    }
    EXPECT_EQ(*counted, expected);
  }
}

}  // namespace
}  // namespace holdfast::test
