// Makes the tokens of text sources in the token cache (runtime/data/token_cache.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/data/token_cache.h"
#include "runtime/os/env.h"
#include "runtime/text/tokenize.h"

namespace holdfast::text {

// SourceTokens is a text source with its place in the cache.
struct SourceTokens {
  SourceConfig source;
  std::string directory;
  std::uint64_t text_bytes = 0;
  std::int64_t vocabulary = 0;          // of the tokenizer
  std::optional<TextTokens> made = {};  // nothing: they are to be made
};

// Returns whether a run has sources that are tokenized.
bool has_text_to_tokenize(const Config& config);

// Returns a sentence's part about tokens: "123 documents, 4567 tokens, the largest 1999 of 0 to 1999".
std::string text_of(const TextTokens& tokens);

// Returns the sources of training and of evaluation that are tokenized, those with the same tokens once. Reads the tokenizers of
// those that are to be made. Errors: data, where a file cannot be read or used; config, where two tokenizers are not one, or have
// more tokens than model.vocabulary where that is given.
Result<std::vector<SourceTokens>> find_source_tokens(Env& env, const Config& config);

struct MakeTerms {
  int threads = 1;
  CorpusProgress progress = [](std::uint64_t, std::uint64_t) {};  // of the text that this process tokenizes
  std::function<void()> waits = [] {};  // called at each look at what another process makes
  std::function<bool()> stops = [] { return false; };
};

// Makes the tokens of a source, or waits until another process has made them: one that holds the lock DIRECTORY.lock makes them in
// DIRECTORY.partial, which gets the name DIRECTORY when it is whole. What one that was killed has left is begun again. Errors: data;
// communication where terms.stops() says so; both leave nothing.
Result<void> make_source_tokens(Env& env, const SourceTokens& tokens, const MakeTerms& terms);

// Keeps the tokenizer of a run's sources as tokenizer.json in its directory, for those who use its model. One that is no tokenizer.json (a rank
// file) is not kept. Errors: checkpoint where it cannot be written.
Result<void> keep_tokenizer(Env& env, const Config& config, const std::string& run_directory);
inline std::string kept_tokenizer(const std::string& run_directory) {
  return run_directory + "/tokenizer.json";
}

// Returns the token that ends documents. `name`: of an added token; empty: the one that is known for that. ExitCode::config where
// the tokenizer has none; `advice` says what to do then, "say which one ends a document by --eos TOKEN".
Result<TokenId> end_of_documents(const Tokenizer& tokenizer, const std::string& name,
                                 const std::string& advice);

}  // namespace holdfast::text
