// Training of a byte-level BPE: counts the pieces of a corpus, and makes tokens of the pairs that occur most often. The tokens
// depend on the pieces and their counts alone, and are those of the trainer of Python's tokenizers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/text/tokenizer.h"

namespace holdfast::text {

// Counts the pieces of texts. One for each thread.
class PieceCounter {
 public:
  explicit PieceCounter(const SplitPattern& pattern) : finder_(pattern) {}
  Result<void> add(std::string_view text);
  void merge(const PieceCounter& other);
  // Returns the pieces in the order of their bytes.
  std::vector<std::pair<std::string, std::uint64_t>> sorted() const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view piece) const {
      return static_cast<std::size_t>(hash_of_piece(piece));
    }
  };
  void count(std::string_view piece, std::uint64_t times);
  PieceFinder finder_;
  std::string repaired_;
  std::unordered_map<std::string, std::uint64_t, Hash, std::equal_to<>> counts_;
};

struct BpeTraining {
  std::int64_t vocabulary = 0;       // tokens to make, special ones and the 256 bytes among them
  std::vector<std::string> special;  // the first tokens; they differ
  std::string pattern;
  std::function<void(std::size_t)> progress = [](std::size_t) {
  };  // called with the number of tokens, now and then
};

// Returns the tokenizer; it has fewer tokens where no pair is left. The vocabulary has room for the special tokens and the bytes.
TokenizerParts train_bpe(const std::vector<std::pair<std::string, std::uint64_t>>& pieces,
                         const BpeTraining& training);

}  // namespace holdfast::text
