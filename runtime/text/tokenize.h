// Tokenizes a corpus: its documents become a Megatron-LM dataset, and a part of them another one that is held out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/text/bpe_training.h"
#include "runtime/text/corpus.h"
#include "runtime/text/tokenizer.h"

namespace holdfast::text {

// Called on the calling thread with the bytes that have been read, and how many there are.
using CorpusProgress = std::function<void(std::uint64_t, std::uint64_t)>;

struct TokenizeOptions {
  CorpusInput input;
  std::string prefix = {};             // PREFIX.bin and PREFIX.idx
  double held_out = 0.0;               // share of the documents that goes to PREFIX-held-out
  bool dedupe = false;                 // a document that was there before, byte for byte, is left out
  std::optional<TokenId> append = {};  // token at the end of each document
  int threads = 1;
  std::size_t part_bytes = std::size_t{1} << 20;  // a text file of several parts is shared by threads
  CorpusProgress progress = [](std::uint64_t, std::uint64_t) {};
  std::function<bool()> stops = [] {
    return false;
  };  // asked as often; true ends it with ExitCode::communication
};

struct TokenizeTotals {
  std::uint64_t documents = 0, empty_documents = 0, tokens = 0, text_bytes = 0;
  std::uint64_t duplicate_documents = 0, duplicate_bytes = 0;  // left out
  std::uint64_t held_out_documents = 0, held_out_tokens = 0;   // of those above
  std::uint64_t broken_bytes = 0;                              // that are not UTF-8, and became U+FFFD
  std::int64_t largest_token = -1;
};

// Returns the name of the dataset that is held out.
std::string held_out_name(const std::string& prefix);

// Writes the datasets; they are whole or not there. Whether a document is held out follows from its text: equal documents are in
// the same part, in every order of the files. Nothing depends on the number of threads.
Result<TokenizeTotals> tokenize_files(Env& env, const Tokenizer& tokenizer, const TokenizeOptions& options);

// Counts the pieces of a corpus, for train_bpe().
Result<std::vector<std::pair<std::string, std::uint64_t>>> count_pieces(Env& env, const CorpusInput& input,
                                                                        const SplitPattern& pattern,
                                                                        int threads,
                                                                        const CorpusProgress& progress);

}  // namespace holdfast::text
