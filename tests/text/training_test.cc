// Training by small tables, and corpora: documents of files, the order of threads, the dataset that is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "runtime/core/json.h"
#include "runtime/core/random.h"
#include "runtime/text/bpe_training.h"
#include "runtime/text/large_text.h"
#include "runtime/text/tokenize.h"
#include "runtime/text/tokenizer_file.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Pieces = std::vector<std::pair<std::string, std::uint64_t>>;

std::vector<std::string> made_of(const Pieces& pieces, std::int64_t tokens) {
  const TokenizerParts parts =
      train_bpe(pieces, {.vocabulary = 257 + tokens, .special = {"<e>"}, .pattern = pattern_of("gpt2")});
  EXPECT_EQ(parts.tokens[0], "<e>");
  EXPECT_EQ(parts.tokens[1], "!");  // the first character that stands for a byte
  return {parts.tokens.begin() + 257, parts.tokens.end()};
}

TEST(BpeTraining, TheMostFrequentPairComesFirstAndOfEqualOnesThatOfTheSmallerTokens) {
  EXPECT_THAT(made_of({{"ab", 2}, {"cd", 3}}, 2), ElementsAre("cd", "ab"));
  EXPECT_THAT(made_of({{"cd", 3}, {"ab", 3}}, 2), ElementsAre("ab", "cd"));
  EXPECT_THAT(made_of({{"abc", 5}, {"bc", 1}}, 2), ElementsAre("bc", "abc"));
  EXPECT_THAT(made_of({{"ab", 1}}, 5), ElementsAre("ab"));  // no pair is left
}

TEST(BpeTraining, APairThatAMergeTakesAwayCountsNoMore) {
  // "bc" occurs 6 times at first, and 2 times when "ab" (7 times) has taken its b.
  EXPECT_THAT(made_of({{"abc", 4}, {"ab", 3}, {"bc", 2}, {"xy", 3}}, 3), ElementsAre("ab", "abc", "xy"));
  EXPECT_THAT(made_of({{"aaaa", 1}}, 2), ElementsAre("aa", "aaaa"));
}

// The file writes bytes as characters: a special token is that of bytes where it is written as they are, not where it has
// these bytes.
TEST(BpeTraining, ASpecialTokenIsThatOfTheBytesItIsWrittenAs) {
  const Pieces pieces = {{" a", 9}, {"\xC3\xA9", 5}};
  const std::vector<std::string> special = {"\u2192", "\u00e9", " ", "\u0120a", "\u00a0"};
  TokenizerParts parts =
      train_bpe(pieces, {.vocabulary = 262, .special = special, .pattern = pattern_of("gpt2")});
  EXPECT_EQ(parts.tokens.size(),
            261u);  // U+00E9 is that of a byte, U+0120 and a that of a merge; U+2192 and blanks are alone
  EXPECT_THAT(std::vector(parts.tokens.begin(), parts.tokens.begin() + 5),
              ElementsAre("", "\xE9", "", " a", ""));
  const Result<TokenizerParts> read = parse_tokenizer_json(tokenizer_json(parts));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->tokens, parts.tokens);
  EXPECT_EQ(read->others, parts.others);
  const Tokenizer made = *Tokenizer::make(*read);
  std::vector<TokenId> ids;
  ASSERT_TRUE(Encoder(made).encode("\u2192x \u00e9", ids).ok());
  EXPECT_EQ(made.decode(ids), "\u2192x \u00e9");
}

TEST(BpeTraining, CountsDoNotDependOnHowTextIsShared) {
  const SplitPattern pattern = *SplitPattern::compile(pattern_of("llama3"));
  PieceCounter whole(pattern), one(pattern), other(pattern);
  const std::string first = "The text, 12345 times.\n", second = "text\xFF the text";
  for (const std::string& text : {first, second}) ASSERT_TRUE(whole.add(text).ok());
  ASSERT_TRUE(one.add(second).ok());
  ASSERT_TRUE(other.add(first).ok());
  one.merge(other);
  EXPECT_EQ(one.sorted(), whole.sorted());
}

class CorpusTest : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) {
    std::ofstream(directory / name, std::ios::binary) << content;
    return directory / name;
  }
  Result<std::vector<std::string>> documents_of(const CorpusInput& input) {
    HF_TRY(CorpusReader reader, CorpusReader::open(posix_env(), input));
    std::vector<std::string> documents;
    DocumentBatch batch;
    std::string storage;
    while (true) {
      HF_TRY(const bool is_there, reader.next(batch));
      if (!is_there) return documents;
      for (const DocumentBatch::Document& document : batch.documents) {
        HF_TRY(const std::string_view text, reader.text_of(batch, document, storage));
        documents.emplace_back(text);
      }
    }
  }
  Tokenizer tokenizer() {
    TokenizerParts parts = train_bpe({{"ab", 9}, {" ab", 5}},
                                     {.vocabulary = 259, .special = {"<e>"}, .pattern = pattern_of("gpt2")});
    return *Tokenizer::make(parts);
  }
  std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
      found.push_back(entry.path().filename().string());
    std::ranges::sort(found);
    return found;
  }

  test::TemporaryDirectory directory;
};

TEST_F(CorpusTest, LinesOfAnyLengthAreDocuments) {
  std::string lines;
  std::vector<std::string> expected;
  for (std::size_t i = 0; i < 60; ++i) {  // of 1 byte to 3 MB, so that batches cut them anywhere
    const std::string text(i % 7 == 0 ? i * 50'000 : i, static_cast<char>('a' + i % 26));
    expected.push_back(text);
    lines += Json{{"text", text}}.dump() + (i % 3 == 0 ? "\r\n" : "\n") + (i % 5 == 0 ? "  \n" : "");
  }
  lines.pop_back();
  EXPECT_EQ(documents_of({.paths = {write("a.jsonl", lines)}, .is_jsonl = true}).value(), expected);
  EXPECT_TRUE(documents_of({.paths = {write("b.jsonl", "\n \n")}, .is_jsonl = true}).value().empty());
}

TEST_F(CorpusTest, ALineThatIsWrongIsNamed) {
  const std::string good = write("good.jsonl", "{\"text\": \"x\"}\n");
  const std::string bad = write("bad.jsonl", "{\"text\": \"x\"}\n\n[1]\n");
  const auto documents = documents_of({.paths = {good, bad}, .is_jsonl = true});
  ASSERT_FALSE(documents.ok());
  EXPECT_THAT(documents.error().message, HasSubstr("bad.jsonl, line 3: \"[1]\" is not an object of JSON"));
}

TEST_F(CorpusTest, AReadThatFailsForAMomentIsRepeated) {
  test::FaultyEnv disk(posix_env());
  disk.inject({.operation = test::Operation::read, .path_contains = "large.txt", .reason = EIO});
  const auto totals =
      tokenize_files(disk, tokenizer(),
                     {.input = {.paths = {write("large.txt", "ab ab")}}, .prefix = directory / "read again"});
  ASSERT_TRUE(totals.ok()) << totals.error().message;
  EXPECT_EQ(totals->text_bytes, 5u);
}

TEST_F(CorpusTest, ALineThatIsNotJsonSaysWhereAndWhy) {
  const auto error_of = [&](const std::string& line) {
    return documents_of({.paths = {write("a.jsonl", line)}, .is_jsonl = true}).error().message;
  };
  EXPECT_THAT(error_of("{\"text\": \"\\ud800\"}"), HasSubstr("column 17: syntax error while parsing value"));
  EXPECT_THAT(error_of("{\"text\": \"\\ud800\"}"), HasSubstr("surrogate"));
  EXPECT_THAT(error_of("{\"text\": \"x\", \"score\": NaN}"), HasSubstr("invalid literal; last read"));
  EXPECT_THAT(error_of("null"), HasSubstr("\"null\" is not an object of JSON"));
}

TEST_F(CorpusTest, EveryNumberOfThreadsWritesTheSameFiles) {
  CorpusInput input{.is_jsonl = true};
  std::string lines;
  for (int i = 0; i < 40'000; ++i)
    lines += Json{{"text", std::string(static_cast<std::size_t>(i % 97), 'a') + " ab ab"}}.dump() + "\n";
  input.paths = {write("a.jsonl", lines), write("b.jsonl", lines)};
  const Tokenizer made = tokenizer();
  for (const int threads : {1, 2, 5}) {
    const auto totals = tokenize_files(
        posix_env(), made,
        {.input = input, .prefix = directory / std::to_string(threads), .held_out = 0.3, .threads = threads});
    ASSERT_TRUE(totals.ok()) << totals.error().message;
    EXPECT_EQ(totals->documents, 80'000u);
    for (const std::string ending : {".bin", ".idx", "-held-out.bin", "-held-out.idx"})
      EXPECT_EQ(posix_env().text_or_empty(directory / (std::to_string(threads) + ending)),
                posix_env().text_or_empty(directory / ("1" + ending)));
  }
}

TEST_F(CorpusTest, ADocumentThatWasThereBeforeIsLeftOutWhereThatIsWanted) {
  const std::string once = write("once.txt", std::string(4000, 'a') + "b"),
                    same = write("same.txt", std::string(4000, 'a') + "b");
  const std::string other = write("other.txt", std::string(4000, 'a') + "c");
  const Tokenizer made = tokenizer();
  for (const std::size_t part_bytes : {std::size_t{1} << 20, std::size_t{500}}) {  // whole, and in parts
    const auto tokens_of = [&](const std::string& name, std::vector<std::string> paths, bool dedupe) {
      const auto totals = tokenize_files(posix_env(), made,
                                         {.input = {.paths = std::move(paths)},
                                          .prefix = directory / (name + std::to_string(part_bytes)),
                                          .dedupe = dedupe,
                                          .threads = 2,
                                          .part_bytes = part_bytes});
      EXPECT_TRUE(totals.ok()) << totals.error().message;
      return totals.ok() ? *totals : TokenizeTotals();
    };
    const TokenizeTotals all = tokens_of("all", {once, other, same, once}, false);
    EXPECT_EQ(std::pair(all.documents, all.duplicate_documents),
              std::pair(std::uint64_t{4}, std::uint64_t{0}));
    const TokenizeTotals few = tokens_of("few", {once, other, same, once}, true);
    EXPECT_EQ(std::pair(few.documents, few.duplicate_documents),
              std::pair(std::uint64_t{2}, std::uint64_t{2}));
    EXPECT_EQ(few.duplicate_bytes, 8002u);
    tokens_of("two", {once, other}, false);
    for (const std::string ending : {".bin", ".idx"})
      EXPECT_EQ(posix_env().text_or_empty(directory / ("few" + std::to_string(part_bytes) + ending)),
                posix_env().text_or_empty(directory / ("two" + std::to_string(part_bytes) + ending)));
  }
}

TEST_F(CorpusTest, ALargeTextIsWorkThatMovesOn) {
  std::set<std::uint64_t> seen;
  std::uint64_t last = 0;
  const auto totals = tokenize_files(posix_env(), tokenizer(),
                                     {.input = {.paths = {write("large.txt", std::string(4000, 'a'))}},
                                      .prefix = directory / "large",
                                      .threads = 2,
                                      .part_bytes = 500,
                                      .progress = [&](std::uint64_t done, std::uint64_t all) {
                                        EXPECT_EQ(all, 4000u);
                                        EXPECT_GE(done, last);
                                        seen.insert(last = done);
                                      }});
  ASSERT_TRUE(totals.ok()) << totals.error().message;
  EXPECT_GE(seen.size(), 4u);
  EXPECT_LT(*seen.begin(), 2000u);
  EXPECT_EQ(last, 4000u);
}

// Whatever the places are where a large text is cut: long pieces, characters of several bytes, added tokens, marks.
TEST_F(CorpusTest, PartsOfALargeTextHaveTheTokensOfTheWhole) {
  TokenizerParts parts = train_bpe({{"ab", 9}, {" ab", 5}, {"\xC3\xA9", 3}, {"  ", 2}},
                                   {.vocabulary = 261, .special = {"<e>"}, .pattern = pattern_of("llama3")});
  parts.added.push_back({.content = "=+",
                         .id = static_cast<TokenId>(parts.tokens.size()),
                         .special = false,
                         .normalized = true});
  parts.composes = true;
  const Tokenizer made = *Tokenizer::make(parts);
  const std::vector<std::string> words = {"ab",
                                          " ab",
                                          "ab12345",
                                          "\n",
                                          "\n\n",
                                          std::string(40, ' '),
                                          "e\xCC\x81",
                                          "\xE4\xB8\xAD\xE6\x96\x87",
                                          "<e>",
                                          "=+",
                                          "it's",
                                          "\xFF",
                                          std::string(300, 'b'),
                                          "!?"};
  const RandomStream random(3, 4);
  for (std::uint64_t round = 0; round < 300; ++round) {
    std::string text;
    for (std::uint64_t i = 0; i < 150; ++i)
      text += words[static_cast<std::size_t>(random.uniform(round * 1000 + i) *
                                             static_cast<double>(words.size()))];
    std::vector<TokenId> expected, joined;
    ASSERT_TRUE(Encoder(made).encode(text, expected).ok());
    const LargeText large(made, text, 20 + round);
    Encoder encoder(made);
    PartJoiner joiner(made);
    EncodedPart part;
    for (std::size_t i = 0; i < large.part_count(); ++i) {
      ASSERT_TRUE(large.encode(encoder, i, part).ok());
      const std::span<const TokenId> ids = *joiner.take(large, i, part);
      joined.insert(joined.end(), ids.begin(), ids.end());
    }
    ASSERT_EQ(joined, expected) << round;
  }
}

// Each token is made once or twice, however many parts a piece has.
TEST_F(CorpusTest, APieceOfManyPartsIsEncodedOnce) {
  const Tokenizer made = tokenizer();
  for (const std::string& text : {std::string(64'000, 'b'), "x" + std::string(64'000, ' ') + "b",
                                  std::string(3000, 'a') + " " + std::string(64'000, 'b') + " ab"}) {
    std::vector<TokenId> expected, joined;
    ASSERT_TRUE(Encoder(made).encode(text, expected).ok());
    const LargeText large(made, text, 1000);
    ASSERT_GE(large.part_count(), 64u);
    Encoder encoder(made);
    PartJoiner joiner(made);
    EncodedPart part;
    std::size_t tokens_made = 0;
    for (std::size_t i = 0; i < large.part_count(); ++i) {
      ASSERT_TRUE(large.encode(encoder, i, part).ok());
      tokens_made += part.ids.size();
      const std::span<const TokenId> ids = *joiner.take(large, i, part);
      joined.insert(joined.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(joined, expected);
    EXPECT_LE(tokens_made, 2 * expected.size());
  }
}

TEST_F(CorpusTest, ALargeFileIsWrittenInPartsAsItIsAlone) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += std::to_string(i * 7919) + (i % 5 == 0 ? "\n" : " ab ");
  const CorpusInput input{
      .paths = {write("small.txt", "ab ab"), write("large.txt", text), write("last.txt", "ab")}};
  const TokenId end = 0;
  const auto alone = tokenize_files(posix_env(), tokenizer(),
                                    {.input = input, .prefix = directory / "alone", .append = end});
  const auto shared = tokenize_files(
      posix_env(), tokenizer(),
      {.input = input, .prefix = directory / "shared", .append = end, .threads = 3, .part_bytes = 500});
  ASSERT_TRUE(alone.ok() && shared.ok());
  EXPECT_EQ(alone->tokens, shared->tokens);
  EXPECT_EQ(alone->text_bytes, shared->text_bytes);
  EXPECT_EQ(shared->documents, 3u);
  for (const std::string ending : {".bin", ".idx"})
    EXPECT_EQ(posix_env().text_or_empty(directory / ("alone" + ending)),
              posix_env().text_or_empty(directory / ("shared" + ending)));
}

TEST_F(CorpusTest, ATextThatAPatternFailsOnIsNamed) {
  TokenizerParts parts =
      train_bpe({{"ab", 9}}, {.vocabulary = 259, .special = {}, .pattern = "(*LIMIT_MATCH=4)(?:a|b)+c|a|b"});
  const Tokenizer made = *Tokenizer::make(parts);
  const std::string text(4000, 'a');
  const auto error_of = [&](const CorpusInput& input, std::size_t part_bytes) {
    return tokenize_files(posix_env(), made,
                          {.input = input, .prefix = directory / "x", .part_bytes = part_bytes})
        .error()
        .message;
  };
  const std::string file = write("a.txt", text), lines = write("a.jsonl", "{\"text\": \"" + text + "\"}");
  EXPECT_THAT(error_of({.paths = {file}}, 1'000'000), HasSubstr("a.txt: the regular expression of the"));
  EXPECT_THAT(error_of({.paths = {file}}, 500), HasSubstr("a.txt: the regular expression of the"));
  const CorpusInput input{.paths = {lines}, .is_jsonl = true};
  EXPECT_THAT(error_of(input, 1000), HasSubstr("a.jsonl, line 1: the regular expression of the"));
  EXPECT_THAT(count_pieces(posix_env(), input, *SplitPattern::compile(parts.pattern), 1, [](auto, auto) {})
                  .error()
                  .message,
              HasSubstr("a.jsonl, line 1: the regular expression of the"));
}

TEST_F(CorpusTest, BytesThatAreNotUtf8AreCounted) {
  const std::string broken = "ab\xFF ab\xE2\x82 ab";  // one byte, and two of a character that has three
  const CorpusInput files{.paths = {write("a.txt", broken), write("b.txt", "ab")}};
  EXPECT_EQ(
      tokenize_files(posix_env(), tokenizer(), {.input = files, .prefix = directory / "x"})->broken_bytes,
      3u);
  EXPECT_EQ(
      tokenize_files(posix_env(), tokenizer(), {.input = files, .prefix = directory / "y", .part_bytes = 2})
          ->broken_bytes,
      3u);
  const CorpusInput lines{.paths = {write("a.jsonl", "{\"text\": \"" + broken + "\"}")}, .is_jsonl = true};
  EXPECT_EQ(
      tokenize_files(posix_env(), tokenizer(), {.input = lines, .prefix = directory / "z"})->broken_bytes,
      3u);
}

TEST_F(CorpusTest, WhatIsNoTextIsRefused) {
  for (const std::string begin : {"\x1F\x8B", "\x28\xB5\x2F\xFD",
                                  "\xFD"
                                  "7zXZ",
                                  "BZh9", "PK\x03\x04", "PAR1", "ARROW1", "\xFF\xFE", "\xFE\xFF"}) {
    const std::string path = write("a", begin + "and more");
    for (const bool is_jsonl : {false, true}) {
      const auto documents = documents_of({.paths = {path}, .is_jsonl = is_jsonl});
      ASSERT_FALSE(documents.ok()) << begin;
      EXPECT_THAT(documents.error().message, HasSubstr("expected text in UTF-8"));
    }
  }
  EXPECT_EQ(documents_of({.paths = {write("a", "\xEF\xBB\xBFtext")}}).value().size(), 1u);
}

TEST_F(CorpusTest, AnErrorLeavesNoFiles) {
  const std::string bad = write("bad.jsonl", "{\"text\": \"x\"}\n{\"text\": 1}\n");
  const auto totals =
      tokenize_files(posix_env(), tokenizer(),
                     {.input = {.paths = {bad}, .is_jsonl = true}, .prefix = directory / "x", .threads = 2});
  EXPECT_FALSE(totals.ok());
  EXPECT_THAT(names(), ElementsAre("bad.jsonl"));
}

}  // namespace
}  // namespace holdfast::text
