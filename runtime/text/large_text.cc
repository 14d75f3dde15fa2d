#include "runtime/text/large_text.h"

#include <algorithm>

namespace holdfast::text {
namespace {

// Returns the first place at `from` or later that is between two characters.
std::size_t character_begin(std::string_view text, std::size_t from) {
  while (from < text.size() && (static_cast<std::uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
  return std::min(from, text.size());
}

// Returns a place at `from` or later that is between two characters, behind the end of a line if one is near: pieces often
// begin there.
std::size_t cut_behind(std::string_view text, std::size_t from) {
  constexpr std::size_t near = std::size_t{64} << 10;
  const std::size_t line_end = text.substr(0, std::min(text.size(), from + near)).find('\n', from);
  if (line_end != std::string_view::npos) return line_end + 1;
  return character_begin(text, from);
}

}  // namespace

LargeText::LargeText(const Tokenizer& tokenizer, std::string text, std::size_t part_bytes)
    : part_bytes_(part_bytes), text_(std::move(text)) {
  const std::string_view repaired = repaired_utf8(text_, repaired_);
  std::size_t done = 0;
  while (true) {
    const AddedTokenFinder::Found found = tokenizer.early_.next(repaired, done);
    add_segments(tokenizer, repaired.substr(done, std::min(found.begin, repaired.size()) - done));
    if (found.end == 0) break;
    segments_.push_back({.text = {}, .id = found.id});
    done = found.end;
  }
  add_parts(part_bytes);
}

void LargeText::add_segments(const Tokenizer& tokenizer, std::string_view text) {
  if (tokenizer.parts_.composes) {
    std::string storage;
    text = composed(text, storage);
    if (text.data() == storage.data()) text = composed_.emplace_back(std::move(storage));
  }
  std::size_t done = 0;
  while (true) {
    const AddedTokenFinder::Found found = tokenizer.late_.next(text, done);
    const std::string_view plain = text.substr(done, std::min(found.begin, text.size()) - done);
    if (!plain.empty()) segments_.push_back({.text = plain, .id = {}});
    if (found.end == 0) return;
    segments_.push_back({.text = {}, .id = found.id});
    done = found.end;
  }
}

void LargeText::add_parts(std::size_t part_bytes) {
  std::size_t small_bytes = 0;  // of the last part, where it is of whole segments; 0: it takes no more
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const std::string_view text = segments_[i].text;
    if (text.size() <= part_bytes) {
      if (small_bytes == 0 || small_bytes > part_bytes) {
        parts_.push_back({.first_segment = i, .segments = 0});
        small_bytes = 0;
      }
      ++parts_.back().segments;
      small_bytes += text.size() + 1;
      continue;
    }
    small_bytes = 0;
    for (std::size_t from = 0; from < text.size();) {
      const std::size_t to =
          text.size() - from <= part_bytes ? text.size() : cut_behind(text, from + part_bytes);
      parts_.push_back({.first_segment = i, .segments = 1, .from = from, .to = to});
      from = to;
    }
  }
}

Result<void> LargeText::encode(Encoder& encoder, std::size_t number, EncodedPart& made) const {
  const Part& part = parts_[number];
  made.ids.clear();
  made.boundaries.clear();
  if (part.to > 0) {
    const PieceRange range{.from = part.from, .to = part.to};
    const std::string_view text = segments_[part.first_segment].text;
    const std::size_t seen = character_begin(text, part.to + part_bytes_);
    if (part.from == 0 || seen == text.size()) {
      HF_TRY(made.end, encoder.encode_range(text, range, made.ids, &made.boundaries));
      return {};
    }
    HF_TRY(made.end, encoder.encode_beginning(text.substr(0, seen), range, made.ids, &made.boundaries));
    if (!made.end) made.ids.clear();
    return {};
  }
  for (const Segment& segment : std::span(segments_).subspan(part.first_segment, part.segments)) {
    if (segment.id) made.ids.push_back(*segment.id);
    const PieceRange all{.from = 0, .to = segment.text.size()};
    HF_TRY_VOID(outcome_of(encoder.encode_range(segment.text, all, made.ids, nullptr)));
  }
  return {};
}

Result<std::span<const TokenId>> PartJoiner::take(const LargeText& text, std::size_t number,
                                                  EncodedPart& made) {
  const LargeText::Part& part = text.parts_[number];
  if (part.from == 0) {  // a beginning of segments
    end_ = made.end.value_or(0);
    return std::span<const TokenId>(made.ids);
  }
  if (end_ >= part.to) return std::span<const TokenId>();  // a piece of a part before has it all
  const auto meeting = std::ranges::find(made.boundaries, end_, &PieceBoundary::at);
  if (made.end && meeting != made.boundaries.end()) {
    end_ = *made.end;
    return std::span<const TokenId>(made.ids).subspan(meeting->ids);
  }
  made.ids.clear();
  const PieceRange rest{.from = end_, .to = part.to};
  HF_TRY(end_, encoder_.encode_range(text.segments_[part.first_segment].text, rest, made.ids, nullptr));
  return std::span<const TokenId>(made.ids);
}

}  // namespace holdfast::text
