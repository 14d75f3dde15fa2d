// Text as tokenizers see it: valid UTF-8, in NFC where a tokenizer asks for that, and cut into pieces by a regular
// expression. Tokens are never merged across pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/core/result.h"

namespace holdfast::text {

// Returns the length of the longest prefix that is valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view bytes);
// Returns `bytes` where they are valid UTF-8; otherwise `storage`, which then holds them with U+FFFD in the place of
// every broken sequence, as Python's bytes.decode("utf-8", errors="replace") has it: one for each maximal beginning
// of a character, else one for each byte.
std::string_view repaired_utf8(std::string_view bytes, std::string& storage);
// Returns how many bytes repaired_utf8() replaces.
std::size_t broken_utf8_bytes(std::string_view bytes);

// Returns valid UTF-8 in Unicode's normal form C: `text` itself where nothing changes, otherwise `storage`.
std::string_view composed(std::string_view text, std::string& storage);

// The regular expression of a tokenizer, compiled for PCRE2's JIT. Files of Hugging Face have the syntax and the meaning of
// Oniguruma; an expression that means something else to PCRE2 is translated or refused.
//
// Threads: immutable; each thread matches with a PieceFinder of its own.
class SplitPattern {
 public:
  // ExitCode::config with the reason and the place in the expression.
  static Result<SplitPattern> compile(const std::string& expression);
  const std::string& expression() const { return expression_; }

 private:
  friend class PieceFinder;
  SplitPattern() = default;
  std::string expression_;
  std::shared_ptr<const void> code_;
};

// Finds the matches of a pattern in a text, one after another. Allocates little after its construction.
class PieceFinder {
 public:
  // Compiled code has `stack_bytes` at most; a match that needs more is found without it, more slowly.
  explicit PieceFinder(const SplitPattern& pattern, std::size_t stack_bytes = std::size_t{64} << 20);
  PieceFinder(PieceFinder&&) noexcept = default;

  struct Match {
    std::size_t begin = 0, end = 0;  // begin == end: there is none
    bool is_cut = false;             // of the beginning of a text: what follows may change it
  };
  // Returns the first match at `from` or later. The text is valid UTF-8, and `from` is between two characters of it. It
  // depends on nothing but these: wherever a search begins, the next matches from there are the same.
  Result<Match> next(std::string_view text, std::size_t from);
  // Returns what next() finds in every text that begins with this one, or is_cut.
  Result<Match> next_in_beginning(std::string_view text, std::size_t from);

 private:
  Result<Match> find(std::string_view text, std::size_t from, std::uint32_t options);
  SplitPattern pattern_;
  std::shared_ptr<void> match_data_, context_, stack_;
};

}  // namespace holdfast::text
