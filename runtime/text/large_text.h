// A LargeText is one text in parts that several threads encode at a time, with the tokens of the whole. A part is encoded as
// if a piece began with it; a PartJoiner finds where the pieces of the part before meet those of this one, and takes the tokens from
// there. A match depends on nothing but the place where the search for it begins (PieceFinder), so that they never part again. A
// part looks no further than one more part behind its end, so that a piece of many parts costs each of them no more than others
// do; the joiner encodes such a piece once.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/text/tokenizer.h"

namespace holdfast::text {

struct EncodedPart {
  std::vector<TokenId> ids;
  std::vector<PieceBoundary> boundaries;  // the first ones
  // Where the next piece begins, in or behind the next part; nothing: pieces go on further than that, and there are no tokens.
  std::optional<std::size_t> end;
};

// Threads: immutable.
class LargeText {
 public:
  // Cuts the text into parts of about `part_bytes`.
  LargeText(const Tokenizer& tokenizer, std::string text, std::size_t part_bytes);
  std::size_t part_count() const { return parts_.size(); }
  Result<void> encode(Encoder& encoder, std::size_t part, EncodedPart& made) const;

 private:
  friend class PartJoiner;
  // Text without added tokens, or one of these.
  struct Segment {
    std::string_view text;
    std::optional<TokenId> id;
  };
  // Bytes [from, to) of one segment, or some whole segments.
  struct Part {
    std::size_t first_segment = 0, segments = 1;
    std::size_t from = 0, to = 0;
  };
  void add_segments(const Tokenizer& tokenizer, std::string_view text);
  void add_parts(std::size_t part_bytes);

  std::size_t part_bytes_;
  std::string text_, repaired_;
  std::deque<std::string> composed_;
  std::vector<Segment> segments_;
  std::vector<Part> parts_;
};

// Takes the parts of a text in order.
class PartJoiner {
 public:
  explicit PartJoiner(const Tokenizer& tokenizer) : encoder_(tokenizer) {}
  // Returns the tokens of the part that follow on those of the parts before; they lie in `made`.
  Result<std::span<const TokenId>> take(const LargeText& text, std::size_t part, EncodedPart& made);

 private:
  Encoder encoder_;
  std::size_t end_ = 0;  // of the pieces so far, in the segment
};

}  // namespace holdfast::text
