// The token cache is a directory that keeps the tokens of text sources: those of a source are in a directory of its own, whose name
// is a digest of the text, the tokenizer and the options, so that every start, rank and run that has the same ones finds them.
// A directory gets its name when it is whole:
//
//   CACHE/0a1b.../tokens.bin, tokens.idx    a Megatron dataset
//   CACHE/0a1b.../tokens.json               TextTokens
//
// Readers are here; runtime/text/source_tokens.h makes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/data/token_file.h"
#include "runtime/os/env.h"

namespace holdfast::data {

// TextTokens says what the tokens of a source were made of, and what is in them.
struct TextTokens {
  std::string text = {}, tokenizer = {};  // paths, for people
  std::uint64_t text_bytes = 0;
  std::int64_t vocabulary = 0;  // of the tokenizer
  std::int64_t largest_token = 0;
  std::uint64_t documents = 0, empty_documents = 0, tokens = 0;
  std::uint64_t broken_bytes = 0;  // of the text that are not UTF-8

  static void visit_fields(auto& self, auto&& visit) {
    visit("text", self.text);
    visit("tokenizer", self.tokenizer);
    visit("text_bytes", self.text_bytes);
    visit("vocabulary", self.vocabulary);
    visit("largest_token", self.largest_token);
    visit("documents", self.documents);
    visit("empty_documents", self.empty_documents);
    visit("tokens", self.tokens);
    visit("broken_bytes", self.broken_bytes);
  }
};

// Returns whether a source is text that a tokenizer makes tokens of.
inline bool is_tokenized(const SourceConfig& source) {
  return !source.tokenizer.empty();
}

// Returns data.cache, or the directory that stands for it: token-cache beside the run directory.
std::string token_cache_of(const Config& config);

// Returns the directory of a source in the cache. Reads its files as digest_file() does; a text above whole_digest_bytes also counts as
// another one when it was written anew. ExitCode::data where one of them cannot be read.
Result<std::string> token_directory(Env& env, const SourceConfig& source, const std::string& cache);

// Returns the files in such a directory.
std::string tokens_prefix(const std::string& directory);  // of .bin and .idx
std::string tokens_record(const std::string& directory);

// Returns what is in a directory of token_directory(); nothing where there is none, or where it is not whole.
Result<std::optional<TextTokens>> find_tokens(Env& env, const std::string& directory);

// Opens the tokens of a source. ExitCode::data where they are not made yet.
Result<TokenFile> open_tokenized(Env& env, const SourceConfig& source, const std::string& cache,
                                 bool with_documents);

}  // namespace holdfast::data
