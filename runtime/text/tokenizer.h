// A Tokenizer turns text into tokens and back: byte-level BPE, as GPT-2, Llama 3 and Qwen 2.5 have it.
//
//   HF_TRY(const Tokenizer tokenizer, read_tokenizer(env, "tokenizer.json", ""));
//   Encoder encoder(tokenizer);                       // one for each thread
//   HF_TRY_VOID(encoder.encode("Some text", ids));
//   const std::string bytes = tokenizer.decode(ids);
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/text/bpe.h"
#include "runtime/text/unicode.h"

namespace holdfast::text {

// A text that is one token wherever it stands, such as <|endoftext|>.
struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool special = true;
  bool normalized = false;  // looked for after the normalizer, and after those that are not
};

// TokenizerParts is what a file says of a tokenizer, before it is checked as a whole.
struct TokenizerParts {
  std::vector<std::string> tokens;  // bytes of the token with each id; empty: no bytes have that token
  std::vector<Merge> merges;
  std::vector<AddedToken> added;
  std::vector<std::pair<TokenId, std::string>> others;  // texts of ids that no text becomes, for decoding
  std::string pattern;                                  // regular expression that cuts text into pieces
  bool whole_pieces_first = false;  // a piece that is a token needs no merges (ignore_merges)
  bool composes = false;            // normal form C comes first
};

// Finds the longest of several texts, wherever one begins first.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens);
  struct Found {
    std::size_t begin = std::string_view::npos, end = 0;
    TokenId id = 0;
  };
  Found next(std::string_view text, std::size_t from) const;

 private:
  std::vector<std::pair<std::string, TokenId>> by_length_;  // longest first
  std::array<bool, 256> begins_ = {};
  int single_first_ = -1;  // the first byte of all of them, when it is one
};

// Threads: immutable.
class Tokenizer {
 public:
  // ExitCode::config where a byte has no token, or the pattern cannot be used.
  static Result<Tokenizer> make(TokenizerParts parts);

  // Returns one more than the largest token.
  std::int64_t vocabulary() const { return static_cast<std::int64_t>(bytes_.size()); }
  // Returns the bytes of all tokens, one after another; unknown ones have none.
  std::string decode(std::span<const TokenId> ids) const;
  std::string_view bytes_of(TokenId id) const;
  // Returns the added token with this text.
  std::optional<TokenId> added(std::string_view content) const;
  // Returns the added token that is known to stand at the end of a text: <|endoftext|>, <|end_of_text|> or </s>.
  std::optional<TokenId> end_of_text() const;
  const std::vector<AddedToken>& added_tokens() const { return parts_.added; }

 private:
  friend class Encoder;
  friend class LargeText;
  Tokenizer(TokenizerParts parts, SplitPattern pattern);
  std::optional<TokenId> token_of(std::string_view piece) const;

  TokenizerParts parts_;
  SplitPattern pattern_;
  MergeTable merges_;
  std::array<TokenId, 256> byte_tokens_ = {};
  std::vector<std::string> bytes_;    // by id, added tokens among them
  std::vector<TokenId> piece_slots_;  // hash table of whole pieces
  AddedTokenFinder early_, late_;     // before and after the normalizer
};

// A place in a text where the search for a piece begins, and how many tokens there are before it.
struct PieceBoundary {
  std::size_t at = 0, ids = 0;
};

// The search for pieces begins at `from`, which is between two characters, and ends with the first one that ends at `to` or
// later.
struct PieceRange {
  std::size_t from = 0, to = 0;
};

// Encodes texts, one after another; keeps what it remembers of pieces. One for each thread.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  // Appends the tokens of the text. Broken UTF-8 becomes U+FFFD (repaired_utf8). ExitCode::data where the regular
  // expression fails on it.
  Result<void> encode(std::string_view text, std::vector<TokenId>& ids);
  // Appends the tokens of a range of a text that is valid, composed where that is asked for, and without added tokens. Returns
  // where its last piece ends. `boundaries` gets the first thousands of them, unless it is nullptr.
  Result<std::size_t> encode_range(std::string_view text, PieceRange range, std::vector<TokenId>& ids,
                                   std::vector<PieceBoundary>* boundaries);
  // Does the same with no more than the beginning of a text. Returns nothing where its pieces depend on the rest.
  Result<std::optional<std::size_t>> encode_beginning(std::string_view text, PieceRange range,
                                                      std::vector<TokenId>& ids,
                                                      std::vector<PieceBoundary>* boundaries);

 private:
  using FindPiece = Result<PieceFinder::Match> (PieceFinder::*)(std::string_view, std::size_t);
  Result<std::optional<std::size_t>> encode_pieces(FindPiece find, std::string_view text, PieceRange range,
                                                   std::vector<TokenId>& ids,
                                                   std::vector<PieceBoundary>* boundaries);
  Result<void> encode_normal(std::string_view text, std::vector<TokenId>& ids);
  Result<void> encode_plain(std::string_view text, std::vector<TokenId>& ids);
  void encode_piece(std::string_view piece, std::vector<TokenId>& ids);
  void merge_piece(std::string_view piece, std::vector<TokenId>& ids);

  const Tokenizer& tokenizer_;
  PieceFinder finder_;
  PieceMerger merger_;
  PieceCache cache_;
  std::string repaired_, composed_;
};

}  // namespace holdfast::text
