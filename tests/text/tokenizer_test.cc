// Tokenizers by tables: files that are right and wrong, texts and their tokens, text and back.
#include "runtime/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/core/random.h"
#include "runtime/text/tokenizer_file.h"

namespace holdfast::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The tokens of all bytes, whose id is the byte, and the given ones after them.
TokenizerParts parts_with(const std::vector<std::string>& merged, const std::string& pattern = "gpt2") {
  TokenizerParts parts;
  parts.pattern = pattern_of(pattern);
  for (int byte = 0; byte < 256; ++byte) parts.tokens.emplace_back(1, static_cast<char>(byte));
  parts.tokens.insert(parts.tokens.end(), merged.begin(), merged.end());
  return parts;
}

TokenId id_of(const TokenizerParts& parts, std::string_view token) {
  return static_cast<TokenId>(std::ranges::find(parts.tokens, token) - parts.tokens.begin());
}

void add_merge(TokenizerParts& parts, std::string_view left, std::string_view right) {
  const auto rank = static_cast<std::uint32_t>(parts.merges.size());
  parts.merges.push_back(
      {id_of(parts, left), id_of(parts, right), rank, id_of(parts, std::string(left) + std::string(right))});
}

Tokenizer made(TokenizerParts parts) {
  Result<Tokenizer> tokenizer = Tokenizer::make(std::move(parts));
  HF_CHECK(tokenizer.ok(), "{}", tokenizer.error().message);
  return std::move(tokenizer).value();
}

std::vector<TokenId> tokens_of(const Tokenizer& tokenizer, std::string_view text) {
  Encoder encoder(tokenizer);
  std::vector<TokenId> ids;
  const Result<void> outcome = encoder.encode(text, ids);
  HF_CHECK(outcome.ok());
  return ids;
}

std::vector<std::string> pieces_of(const std::string& pattern, std::string_view text) {
  const Result<SplitPattern> compiled = SplitPattern::compile(pattern_of(pattern));
  HF_CHECK(compiled.ok(), "{}", compiled.error().message);
  PieceFinder finder(*compiled);
  std::vector<std::string> pieces;
  std::size_t done = 0;
  while (done < text.size()) {
    const PieceFinder::Match match = *finder.next(text, done);
    if (match.begin == match.end) break;
    pieces.emplace_back(text.substr(match.begin, match.end - match.begin));
    done = match.end;
  }
  return pieces;
}

TEST(RepairedUtf8, IsWhatPythonsDecodeReplaces) {
  const std::string r = "\xEF\xBF\xBD";
  const std::vector<std::pair<std::string, std::string>> table = {
      {"", ""},
      {"plain", "plain"},
      {"\xC3\xA9", "\xC3\xA9"},
      {"a\xFF"
       "b",
       "a" + r + "b"},
      {"\xC0\x80", r + r},
      {"\xE2\x82", r},  // a character that is cut off is one
      {"\xE2\x82z", r + "z"},
      {"\xED\xA0\x80", r + r + r},  // a surrogate is three
      {"\xF0\x9F\x98", r},
      {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
      {"\xF4\x90\x80\x80", r + r + r + r},  // above U+10FFFF
      {"\x80\x80", r + r},
      {"\xE0\x80\xAF", r + r + r},  // too long for what it says
      {std::string(20, 'x') + "\xF0\x80", std::string(20, 'x') + r + r},
  };
  for (const auto& [bytes, expected] : table) {
    std::string storage;
    EXPECT_EQ(repaired_utf8(bytes, storage), expected) << testing::PrintToString(bytes);
  }
}

TEST(Composed, OnlyWhatNeedsItChanges) {
  std::string storage;
  const std::string plain = "caf\xC3\xA9 \xE4\xB8\xAD";
  EXPECT_EQ(composed("cafe\xCC\x81", storage), "caf\xC3\xA9");
  EXPECT_EQ(composed(plain, storage), plain);
  const std::string ascii = "abc";
  EXPECT_EQ(composed(ascii, storage).data(), ascii.data());
  // Hangul: a syllable and a final consonant are one, a syllable and what is one before the finals are not.
  EXPECT_EQ(composed("\xEA\xB0\x80\xE1\x86\xA8", storage), "\xEA\xB0\x81");
  EXPECT_EQ(composed("\xEA\xB0\x80\xE1\x86\xA7", storage), "\xEA\xB0\x80\xE1\x86\xA7");
  // Of a long text each mark finds the letter before it, wherever the text is cut.
  std::string long_text, expected;
  for (int i = 0; i < 5000; ++i) {
    long_text += "xe\xCC\x81";
    expected += "x\xC3\xA9";
  }
  EXPECT_EQ(composed(long_text, storage), expected);
}

// To exchange neighbours would take this many steps squared, which is minutes.
TEST(Composed, ALongRunOfMarksIsOrderedInTime) {
  constexpr int pairs = 400'000;
  std::string text = "q", above, below, storage;
  for (int i = 0; i < pairs; ++i) {
    text += "\u0301\u0323";
    above += "\u0301";
    below += "\u0323";
  }
  EXPECT_TRUE(composed(text, storage) == "q" + below + above);
  EXPECT_EQ(composed("e\u0301\u0323x", storage), "\u1eb9\u0301x");
  EXPECT_EQ(composed("\u0344", storage), "\u0308\u0301");
}

TEST(Pieces, AreThoseOfTheWellKnownPatterns) {
  EXPECT_THAT(pieces_of("gpt2", "I'll pay 1234  now\n\n"),
              ElementsAre("I", "'ll", " pay", " 1234", " ", " now", "\n\n"));
  EXPECT_THAT(pieces_of("llama3", "I'LL pay 1234  now!\n\n x"),
              ElementsAre("I", "'LL", " pay", " ", "123", "4", " ", " now", "!\n\n", " x"));
  EXPECT_THAT(pieces_of("qwen2", "12 \xC2\xBD"), ElementsAre("1", "2", " ", "\xC2\xBD"));
  // U+180E is no blank, U+0085 and U+3000 are.
  EXPECT_THAT(pieces_of("\\s+|\\S+",
                        "a\xE1\xA0\x8E"
                        "b\xC2\x85\xE3\x80\x80"
                        "c"),
              ElementsAre("a\xE1\xA0\x8E"
                          "b",
                          "\xC2\x85\xE3\x80\x80", "c"));
}

TEST(Pieces, PatternsThatMeanSomethingElseAreRefused) {
  for (const std::string pattern :
       {"a$", "^a", "\\w+", "\\ba", "[a[b]]", "[a&&b]", "\\p{N}{1,3}+", "(?m:.)", "\\p{N}{,3}", "\\p{N}{2}?",
        "\\h", "(", "\\pL", "\\p{^L}", "a*", "\\p{Nonsense}", "\\"}) {
    const Result<SplitPattern> compiled = SplitPattern::compile(pattern);
    ASSERT_FALSE(compiled.ok()) << pattern;
    EXPECT_THAT(compiled.error().message, HasSubstr("its regular expression")) << pattern;
  }
}

TEST(Pieces, CountsThatMeanTheSameAreTaken) {
  EXPECT_THAT(pieces_of("\\p{N}{2,3}?|\\p{L}{2}|\\p{P}?a|[{,}]", "123ab{,"),
              ElementsAre("12", "ab", "{", ","));
}

// Wherever a text is cut off, the pieces that are found are those of the whole.
TEST(Pieces, OfTheBeginningOfATextAreThoseOfTheWhole) {
  const std::string text = "I'll pay 1234567  now!\n\n   \n caf\u00e9 \u4e2d\u6587   x";
  for (const std::string pattern : {"gpt2", "llama3", "qwen2", "\\p{N}+", "(?<=\\s)\\S+(?=\\s)"}) {
    const SplitPattern compiled = *SplitPattern::compile(pattern_of(pattern));
    PieceFinder whole(compiled), beginning(compiled);
    std::size_t found = 0;
    for (std::size_t size = 1; size <= text.size(); ++size) {
      const std::string_view part = std::string_view(text).substr(0, size);
      if (valid_utf8_prefix(part) < size) continue;
      for (std::size_t done = 0; done < size;) {
        const PieceFinder::Match match = *beginning.next_in_beginning(part, done);
        if (match.is_cut) break;
        const PieceFinder::Match expected = *whole.next(text, done);
        ASSERT_EQ(match.begin, expected.begin) << part;
        ASSERT_EQ(match.end, expected.end) << part;
        done = match.end;
        ++found;
      }
    }
    EXPECT_GT(found, 20u) << pattern;
  }
}

// The code that PCRE2 makes for the processor has a stack for the places to go back to.
TEST(Pieces, AMatchThatIsTooMuchForCompiledCodeIsFoundAllTheSame) {
  const SplitPattern compiled = *SplitPattern::compile("(?:a|b)+c|b");
  const std::string text = std::string(100'000, 'a') + "c";
  const Result<PieceFinder::Match> match = PieceFinder(compiled, std::size_t{64} << 10).next(text, 0);
  ASSERT_TRUE(match.ok()) << match.error().message;
  EXPECT_EQ(match->begin, 0u);
  EXPECT_EQ(match->end, text.size());
}

TEST(Pieces, AStackThatCannotBeMadeIsDoneWithout) {
  const SplitPattern compiled = *SplitPattern::compile("(?:a|b)+c|b");
  const std::string text = std::string(100'000, 'a') + "c";
  const Result<PieceFinder::Match> match = PieceFinder(compiled, std::size_t{1} << 62).next(text, 0);
  ASSERT_TRUE(match.ok()) << match.error().message;
  EXPECT_EQ(match->end, text.size());
}

TEST(Bpe, TheLowestRankComesFirstAndThenTheFirstInTheText) {
  TokenizerParts parts = parts_with({"ab", "bc", "aa", "aaaa"});
  add_merge(parts, "b", "c");
  add_merge(parts, "a", "b");
  add_merge(parts, "a", "a");
  add_merge(parts, "aa", "aa");
  const Tokenizer tokenizer = made(parts);
  EXPECT_THAT(tokens_of(tokenizer, "abc"), ElementsAre('a', id_of(parts, "bc")));
  EXPECT_THAT(tokens_of(tokenizer, "aaa"), ElementsAre(id_of(parts, "aa"), 'a'));
  EXPECT_THAT(tokens_of(tokenizer, "aaaaa"), ElementsAre(id_of(parts, "aaaa"), 'a'));
}

// A heap merges long pieces, and a scan short ones: they agree on the same piece beside itself.
TEST(Bpe, ShortAndLongPiecesHaveTheSameTokens) {
  TokenizerParts parts = parts_with({"ab", "ba", "aba", "bab", "abab", "aa", "aab"});
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{{"b", "a"},
                                                                                    {"a", "a"},
                                                                                    {"a", "b"},
                                                                                    {"a", "ba"},
                                                                                    {"ab", "a"},
                                                                                    {"aba", "b"},
                                                                                    {"ba", "b"},
                                                                                    {"aa", "b"}})
    add_merge(parts, left, right);
  const MergeTable table(parts.merges);
  PieceMerger merger;
  const RandomStream random(1, 2);
  // "z" is in no merge, so that a long piece of short ones has the tokens of each.
  for (std::uint64_t round = 0; round < 200; ++round) {
    std::vector<TokenId> whole, expected;
    for (std::uint64_t part = 0; part < 12; ++part) {
      std::vector<TokenId> ids;
      for (std::uint64_t i = 0; i < 3 + part; ++i)
        ids.push_back(random.uniform(round * 1000 + part * 40 + i) < 0.6 ? 'a' : 'b');
      ids.push_back('z');
      whole.insert(whole.end(), ids.begin(), ids.end());
      ids.resize(merger.merge(table, ids));
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    ASSERT_GT(whole.size(), 64u);
    whole.resize(merger.merge(table, whole));
    EXPECT_EQ(whole, expected);
  }
}

TEST(Encoder, APieceThatIsATokenNeedsNoMergesOnlyWhereTheFileSaysSo) {
  TokenizerParts parts = parts_with({"abc"});
  EXPECT_THAT(tokens_of(made(parts), "abc"), ElementsAre('a', 'b', 'c'));
  parts.whole_pieces_first = true;
  EXPECT_THAT(tokens_of(made(parts), "abc"), ElementsAre(256));
}

TEST(Encoder, TheLongestAddedTokenWinsAndNothingIsMergedAcross) {
  TokenizerParts parts = parts_with({"ab"});
  add_merge(parts, "a", "b");
  parts.added = {{.content = "<x>", .id = 257},
                 {.content = "<x>>", .id = 258},
                 {.content = "|", .id = 259, .normalized = true}};
  const Tokenizer tokenizer = made(parts);
  EXPECT_THAT(tokens_of(tokenizer, "ab<x>>a<x>b|ab"), ElementsAre(256, 258, 'a', 257, 'b', 259, 256));
  EXPECT_EQ(tokenizer.vocabulary(), 260);
  EXPECT_EQ(tokenizer.decode(tokens_of(tokenizer, "ab<x>>a<x>b|ab")), "ab<x>>a<x>b|ab");
}

TEST(Tokenizer, KnowsTheTokenThatEndsAText) {
  TokenizerParts parts = parts_with({});
  EXPECT_EQ(made(parts).end_of_text(), std::nullopt);
  parts.added = {{.content = "</s>", .id = 256}, {.content = "<|im_end|>", .id = 257}};
  EXPECT_EQ(made(parts).end_of_text(), TokenId{256});
  parts.added.push_back({.content = "<|endoftext|>", .id = 258});
  EXPECT_EQ(made(parts).end_of_text(), TokenId{258});
}

TEST(Encoder, WhatItRemembersChangesNothing) {
  TokenizerParts parts = parts_with({"ab", "abab"});
  add_merge(parts, "a", "b");
  add_merge(parts, "ab", "ab");
  const Tokenizer tokenizer = made(parts);
  Encoder encoder(tokenizer);
  for (int round = 0; round < 3; ++round) {
    for (const std::string text : {"ab abab", "ababab", "b", " ab", "ab ab\n ab"}) {
      std::vector<TokenId> ids;
      ASSERT_TRUE(encoder.encode(text, ids).ok());
      EXPECT_EQ(ids, tokens_of(tokenizer, text)) << text;
    }
  }
}

TEST(Encoder, EveryTextComesBackByDecoding) {
  TokenizerParts parts = parts_with({"\xC3\xA9", "  ", "th"});
  add_merge(parts, "\xC3", "\xA9");
  add_merge(parts, " ", " ");
  add_merge(parts, "t", "h");
  const Tokenizer tokenizer = made(parts);
  std::string text;
  for (std::uint32_t point = 1; point < 0x3000; ++point) {
    if (point < 0x80)
      text += static_cast<char>(point);
    else if (point < 0x800)
      text += {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
    else
      text += {static_cast<char>(0xE0 | point >> 12), static_cast<char>(0x80 | (point >> 6 & 0x3F)),
               static_cast<char>(0x80 | (point & 0x3F))};
  }
  EXPECT_EQ(tokenizer.decode(tokens_of(tokenizer, text)), text);
}

TEST(TokenizerFile, WhatIsWrittenIsReadAgain) {
  TokenizerParts parts = parts_with({"ab", "\n\xFF"}, "llama3");
  add_merge(parts, "a", "b");
  add_merge(parts, "\n", "\xFF");
  parts.tokens.push_back("<|endoftext|>");
  parts.added = {{.content = "<|endoftext|>", .id = 258}};
  const Result<TokenizerParts> read = parse_tokenizer_json(tokenizer_json(parts));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->tokens, parts.tokens);
  EXPECT_EQ(read->pattern, parts.pattern);
  ASSERT_EQ(read->merges.size(), 2u);
  EXPECT_EQ(read->merges[1].result, 257u);
  EXPECT_EQ(read->added[0].content, "<|endoftext|>");
}

TEST(TokenizerFile, EveryDamageIsASentence) {
  TokenizerParts parts = parts_with({"ab"});
  add_merge(parts, "a", "b");
  parts.tokens.push_back("<e>");
  parts.added = {{.content = "<e>", .id = 257}};
  const std::string whole = tokenizer_json(parts);
  struct Row {
    std::string old_text, new_text, message;
  };
  const std::vector<Row> table = {
      {"\"BPE\"", "\"WordPiece\"", "its model is WordPiece, expected BPE"},
      {"\"dropout\": null", "\"dropout\": 0.1", "dropout = 0.1"},
      {"\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"", "end_of_word_suffix = \"</w>\""},
      {"\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}",
       "its normalizer is Lowercase, expected none or NFC"},
      {"\"add_prefix_space\": false", "\"add_prefix_space\": true", "its pre_tokenizer is"},
      {"\"pre_tokenizer\": {", "\"pre_tokenizer\": null, \"other\": {", "its pre_tokenizer is null"},
      {"\"ab\": 256", "\"ab\": 65", "have the id 65"},
      {"\"ab\": 256", "\"ab\": -1", "the id of the token \"ab\" is -1"},
      {"\"ab\": 256", "\"ab\": 4000000000", "expected a number from 0 to"},
      {"\"ab\": 256", "\"abc\": 256", "but not all three are in its vocab"},
      {"\"vocab\"", "\"vocabulary\"", "its model has no vocab"},
      {"\"merges\"", "\"merge\"", "its model has no merges"},
      {"\"id\": 257", "\"id\": 300", "but Python's tokenizers would give it 257"},
      {"\"lstrip\": false", "\"lstrip\": true", "lstrip = true"},
      {"\"content\": \"<e>\"", "\"content\": 7", "one of its added_tokens is"},
      {"\"decoder\": {", "\"decoder\": null, \"other\": {", "its decoder is missing"},
      {"{", "", "it is not JSON, or damaged"},
  };
  for (const Row& row : table) {
    std::string text = whole;
    const std::size_t at = text.find(row.old_text);
    ASSERT_NE(at, std::string::npos) << row.old_text;
    text.replace(at, row.old_text.size(), row.new_text);
    const Result<TokenizerParts> read = parse_tokenizer_json(text);
    ASSERT_FALSE(read.ok()) << row.new_text;
    EXPECT_EQ(read.error().code, ExitCode::data);
    EXPECT_THAT(read.error().message, HasSubstr(row.message));
  }
  // A file that is cut off anywhere is refused, and nothing worse happens.
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 97)
    EXPECT_FALSE(parse_tokenizer_json(whole.substr(0, bytes)).ok()) << bytes;
}

// That of GPT-2 has no type, merges as lines, and empty texts for null; others name a token for what has none.
TEST(TokenizerFile, OlderFilesAreReadToo) {
  TokenizerParts parts = parts_with({"ab"});
  add_merge(parts, "a", "b");
  std::string file = tokenizer_json(parts);
  const auto replace = [&](const std::string& old_text, const std::string& new_text) {
    const std::size_t at = file.find(old_text);
    ASSERT_NE(at, std::string::npos) << old_text;
    file.replace(at, old_text.size(), new_text);
  };
  replace("\"type\": \"BPE\",", "");
  replace("\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"\"");
  replace("\"unk_token\": null", "\"unk_token\": \"<unk>\"");
  replace("\"merges\": [", "\"merges\": [\"a b\"], \"other\": [");
  const Result<TokenizerParts> read = parse_tokenizer_json(file);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_THAT(tokens_of(made(*read), "ab"), ElementsAre(256));
}

// The character of two bytes is none of byte_level(), so its token is not that of the text with these bytes.
TEST(TokenizerFile, ATokenThatIsNotMadeOfBytesIsOnlyDecoded) {
  TokenizerParts parts = parts_with({"ab"});
  parts.whole_pieces_first = true;
  std::string file = tokenizer_json(parts);
  file.replace(file.find("\"ab\": 256"), 9, "\"\u4e2d\": 256");
  const Result<TokenizerParts> read = parse_tokenizer_json(file);
  ASSERT_TRUE(read.ok()) << read.error().message;
  const Tokenizer tokenizer = made(*read);
  EXPECT_THAT(tokens_of(tokenizer, "\u4e2d"), ElementsAre(0xE4, 0xB8, 0xAD));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{256}), "\u4e2d");
}

TEST(TokenizerFile, AByteWithoutATokenIsRefused) {
  TokenizerParts parts = parts_with({});
  parts.tokens[7].clear();
  const Result<Tokenizer> tokenizer = Tokenizer::make(parts);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(tokenizer.error().message, HasSubstr("no token for the byte 0x07"));
}

TEST(TokenizerFile, RanksOfTiktoken) {
  const Result<TokenizerParts> parts = parse_tiktoken("YQ== 0\nYg== 1\nYWI= 2\n\nYWJh 3\r\n", "gpt2");
  ASSERT_TRUE(parts.ok()) << parts.error().message;
  EXPECT_THAT(parts->tokens, ElementsAre("a", "b", "ab", "aba"));
  EXPECT_EQ(parts->merges.size(), 2u);  // a b, ab a; there is no ba
  EXPECT_TRUE(parts->whole_pieces_first);
  for (const std::string text :
       {"YQ==", "YQ== x", "Y 1", "YQ== 1 2", "YQ== 1\nYg== 1", "*Q== 1", "YQ== 99999999999"})
    EXPECT_FALSE(parse_tiktoken(text, "gpt2").ok()) << text;
}

}  // namespace
}  // namespace holdfast::text
