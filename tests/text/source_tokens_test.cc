// Text sources of a config: where their tokens are kept, that they are made once, and that nothing that is not whole is taken.
#include "runtime/text/source_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "runtime/data/data_set.h"
#include "runtime/text/bpe_training.h"
#include "runtime/text/tokenizer_file.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::text {
namespace {

using testing::HasSubstr;

class SourceTokensTest : public testing::Test {
 protected:
  SourceTokensTest() {
    config_.run.directory = directory_ / "runs/a";
    write("corpus.txt", repeated("ab ab c\n", 500));
    write_tokenizer("tokenizer.json", 3);
    config_.data.sources = {{.path = directory_ / "corpus.txt", .tokenizer = directory_ / "tokenizer.json"}};
  }

  static std::string repeated(const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  }
  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(posix_env().replace_text(directory_ / name, text).ok());
  }
  void write_tokenizer(const std::string& name, std::int64_t merges) {
    const TokenizerParts parts =
        train_bpe({{"ab", 9}, {" ab", 5}, {" c", 3}},
                  {.vocabulary = 257 + merges, .special = {"<|endoftext|>"}, .pattern = pattern_of("gpt2")});
    write(name, tokenizer_json(parts));
  }
  SourceConfig& source() { return config_.data.sources.front(); }
  SourceTokens found() {
    auto all = find_source_tokens(posix_env(), config_);
    EXPECT_TRUE(all.ok()) << all.error().message;
    return all.ok() && !all->empty() ? all->front() : SourceTokens();
  }
  std::string refusal() {
    const auto all = find_source_tokens(posix_env(), config_);
    return all.ok() ? "" : all.error().message;
  }
  std::vector<std::string> cached() { return posix_env().list(directory_ / "runs/token-cache").value(); }

  test::TemporaryDirectory directory_;
  Config config_;
};

TEST_F(SourceTokensTest, AreMadeOnceAndFoundAgain) {
  const SourceTokens first = found();
  EXPECT_FALSE(first.made.has_value());
  EXPECT_EQ(first.vocabulary, 260);
  EXPECT_THAT(first.directory, HasSubstr("/runs/token-cache/"));
  const auto before = DataSet::open(posix_env(), config_.data.sources, 8, data_options(config_));
  ASSERT_FALSE(before.ok());
  EXPECT_THAT(before.error().message, HasSubstr("has no tokens of"));
  ASSERT_TRUE(make_source_tokens(posix_env(), first, {}).ok());
  const SourceTokens again = found();
  ASSERT_TRUE(again.made.has_value());
  EXPECT_EQ(again.made->documents, 1u);
  EXPECT_LT(again.made->largest_token, 260);
  bool worked = false;
  const MakeTerms terms{.progress = [&](std::uint64_t, std::uint64_t) { worked = true; }};
  ASSERT_TRUE(make_source_tokens(posix_env(), first, terms).ok());
  EXPECT_FALSE(worked);
  const auto data = DataSet::open(posix_env(), config_.data.sources, 8, data_options(config_));
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ((*data)->token_count(), again.made->tokens);
  EXPECT_EQ((*data)->vocabulary_of_format().value(), 260);
  EXPECT_EQ(cached().size(), 1u);
}

TEST_F(SourceTokensTest, EverythingThatMakesOtherTokensHasAnotherPlace) {
  std::vector<std::string> places = {found().directory};
  const auto expect_new = [&](const std::string& what) {
    const std::string place = found().directory;
    EXPECT_THAT(places, testing::Not(testing::Contains(place))) << what;
    places.push_back(place);
  };
  source().append_eos = true;
  expect_new("append_eos");
  source().format = "jsonl";
  expect_new("format");
  source().column = "body";
  expect_new("column");
  write("corpus.txt", repeated("ab ab c\n", 499) + "ab ab d\n");
  expect_new("text");
  write_tokenizer("tokenizer.json", 2);
  expect_new("tokenizer");
}

TEST_F(SourceTokensTest, WhatWasKilledIsBegunAgain) {
  const SourceTokens tokens = found();
  std::filesystem::create_directories(tokens.directory + ".partial");
  ASSERT_TRUE(posix_env().replace_text(tokens.directory + ".partial/tokens.bin", "a part").ok());
  std::filesystem::create_directories(tokens.directory);
  ASSERT_TRUE(posix_env().replace_text(tokens.directory + "/tokens.bin", "without a record").ok());
  EXPECT_FALSE(found().made.has_value());
  const auto made = make_source_tokens(posix_env(), tokens, {});
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_TRUE(DataSet::open(posix_env(), config_.data.sources, 8, data_options(config_)).ok());
  EXPECT_EQ(cached().size(), 1u);
}

TEST_F(SourceTokensTest, OneThatIsStoppedLeavesNothing) {
  const Result<void> made = make_source_tokens(posix_env(), found(), {.stops = [] { return true; }});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ExitCode::communication);
  EXPECT_TRUE(cached().empty());
}

TEST_F(SourceTokensTest, ManyAtOnceMakeThemOnce) {
  const SourceTokens tokens = found();
  std::atomic<int> workers = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      bool works = false;
      const MakeTerms terms{.progress = [&](std::uint64_t, std::uint64_t) {
        if (!works) ++workers;
        works = true;
      }};
      EXPECT_TRUE(make_source_tokens(posix_env(), tokens, terms).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(workers, 1);
}

TEST_F(SourceTokensTest, ATokenizerThatDoesNotFitIsRefused) {
  config_.model.vocabulary = 259;
  EXPECT_THAT(refusal(),
              HasSubstr("has 260 tokens, but model.vocabulary = 259; set model.vocabulary to 260 or more"));
  config_.model.vocabulary = 260;
  EXPECT_EQ(refusal(), "");
  write_tokenizer("other.json", 2);
  config_.data.sources.push_back({.path = directory_ / "corpus.txt", .tokenizer = directory_ / "other.json"});
  EXPECT_THAT(refusal(), HasSubstr("which are not the same: a model has one tokenizer"));
}

// Before anything is tokenized, which may take hours.
TEST_F(SourceTokensTest, ATokenizerThatIsTooLargeForThePresetIsRefused) {
  BpeTraining training{.vocabulary = 32'001, .special = {}, .pattern = pattern_of("gpt2")};
  for (int id = 256; id < 32'001; ++id) training.special.push_back("<|" + std::to_string(id) + "|>");
  write("tokenizer.json", tokenizer_json(train_bpe({{"ab", 9}}, training)));
  config_.model.preset = "llama-15m";
  EXPECT_THAT(refusal(),
              HasSubstr("has 32001 tokens, but model.preset = \"llama-15m\" has model.vocabulary = "
                        "32000; set model.vocabulary to 32001 or more, or give"));
  config_.model.vocabulary = 32'001;
  EXPECT_EQ(refusal(), "");
}

TEST_F(SourceTokensTest, SourcesAreCutIntoPiecesAlike) {
  const std::string base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string ranks;  // of the 256 bytes
  for (std::size_t byte = 0; byte < 256; ++byte)
    ranks += std::string{base64[byte / 4], base64[byte % 4 * 16]} + "== " + std::to_string(byte) + "\n";
  write("ranks.txt", ranks);
  source().tokenizer = directory_ / "ranks.txt";
  source().pattern = "gpt2";
  config_.data.sources.push_back(source());
  EXPECT_EQ(refusal(), "");
  config_.data.sources.back().pattern = "llama3";
  EXPECT_THAT(refusal(), HasSubstr("has pattern = \"gpt2\" and"));
}

}  // namespace
}  // namespace holdfast::text
