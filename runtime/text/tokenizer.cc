#include "runtime/text/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace holdfast::text {
namespace {

constexpr TokenId no_token = ~TokenId{0};

std::vector<AddedToken> those_of(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> found;
  for (const AddedToken& token : tokens) {
    if (token.normalized == normalized) found.push_back(token);
  }
  return found;
}

// Returns the added tokens that are looked for in text of normal form C, in that form themselves.
std::vector<AddedToken> late_tokens(const TokenizerParts& parts) {
  std::vector<AddedToken> found = those_of(parts.added, true);
  std::string storage;
  for (AddedToken& token : found) {
    if (parts.composes) token.content = std::string(composed(token.content, storage));
  }
  return found;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    by_length_.emplace_back(token.content, token.id);
    begins_[static_cast<std::uint8_t>(token.content.front())] = true;
  }
  std::ranges::stable_sort(by_length_, std::ranges::greater(),
                           [](const auto& each) { return each.first.size(); });
  if (std::ranges::count(begins_, true) == 1)
    single_first_ = static_cast<int>(std::ranges::find(begins_, true) - begins_.begin());
}

AddedTokenFinder::Found AddedTokenFinder::next(std::string_view text, std::size_t from) const {
  if (by_length_.empty()) return {};
  for (std::size_t at = from; at < text.size(); ++at) {
    if (single_first_ >= 0) {
      const void* found = std::memchr(text.data() + at, single_first_, text.size() - at);
      if (found == nullptr) return {};
      at = static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
    } else if (!begins_[static_cast<std::uint8_t>(text[at])]) {
      continue;
    }
    for (const auto& [content, id] : by_length_) {
      if (text.substr(at).starts_with(content)) return {at, at + content.size(), id};
    }
  }
  return {};
}

Tokenizer::Tokenizer(TokenizerParts parts, SplitPattern pattern)
    : parts_(std::move(parts)),
      pattern_(std::move(pattern)),
      merges_(parts_.merges),
      early_(those_of(parts_.added, false)),
      late_(late_tokens(parts_)) {
  bytes_ = parts_.tokens;
  for (const auto& [id, content] : parts_.others) bytes_[id] = content;
  for (const AddedToken& token : parts_.added) {
    if (bytes_.size() <= token.id) bytes_.resize(token.id + 1);
    bytes_[token.id] = token.content;
  }
  const std::size_t slots = std::bit_ceil(2 * parts_.tokens.size() + 1);
  piece_slots_.assign(slots, no_token);
  for (TokenId id = 0; id < parts_.tokens.size(); ++id) {
    const std::string& token = parts_.tokens[id];
    if (token.empty()) continue;
    std::size_t slot = hash_of_piece(token) & (slots - 1);
    while (piece_slots_[slot] != no_token) slot = (slot + 1) & (slots - 1);
    piece_slots_[slot] = id;
    if (token.size() == 1) byte_tokens_[static_cast<std::uint8_t>(token.front())] = id;
  }
}

Result<Tokenizer> Tokenizer::make(TokenizerParts parts) {
  std::array<bool, 256> has_token = {};
  for (const std::string& token : parts.tokens) {
    if (token.size() == 1) has_token[static_cast<std::uint8_t>(token.front())] = true;
  }
  if (const auto* missing = std::ranges::find(has_token, false); missing != has_token.end()) {
    return fail(ExitCode::config,
                "it has no token for the byte 0x{:02x}, so it cannot write every text; a byte-level "
                "tokenizer has one "
                "for each of the 256",
                missing - has_token.begin());
  }
  HF_TRY(SplitPattern pattern, SplitPattern::compile(parts.pattern));
  return Tokenizer(std::move(parts), std::move(pattern));
}

std::optional<TokenId> Tokenizer::token_of(std::string_view piece) const {
  const std::size_t mask = piece_slots_.size() - 1;
  for (std::size_t slot = hash_of_piece(piece) & mask;; slot = (slot + 1) & mask) {
    const TokenId id = piece_slots_[slot];
    if (id == no_token) return std::nullopt;
    if (parts_.tokens[id] == piece) return id;
  }
}

std::string_view Tokenizer::bytes_of(TokenId id) const {
  return id < bytes_.size() ? std::string_view(bytes_[id]) : std::string_view();
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string bytes;
  for (const TokenId id : ids) bytes += bytes_of(id);
  return bytes;
}

std::optional<TokenId> Tokenizer::added(std::string_view content) const {
  for (const AddedToken& token : parts_.added) {
    if (token.content == content) return token.id;
  }
  return std::nullopt;
}

std::optional<TokenId> Tokenizer::end_of_text() const {
  for (const std::string_view content : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    if (const std::optional<TokenId> id = added(content)) return id;
  }
  return std::nullopt;
}

Encoder::Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer), finder_(tokenizer.pattern_) {}

Result<void> Encoder::encode(std::string_view text, std::vector<TokenId>& ids) {
  text = repaired_utf8(text, repaired_);
  std::size_t done = 0;
  while (true) {
    const AddedTokenFinder::Found found = tokenizer_.early_.next(text, done);
    HF_TRY_VOID(encode_normal(text.substr(done, std::min(found.begin, text.size()) - done), ids));
    if (found.end == 0) return {};
    ids.push_back(found.id);
    done = found.end;
  }
}

Result<void> Encoder::encode_normal(std::string_view text, std::vector<TokenId>& ids) {
  if (tokenizer_.parts_.composes) text = composed(text, composed_);
  std::size_t done = 0;
  while (true) {
    const AddedTokenFinder::Found found = tokenizer_.late_.next(text, done);
    HF_TRY_VOID(encode_plain(text.substr(done, std::min(found.begin, text.size()) - done), ids));
    if (found.end == 0) return {};
    ids.push_back(found.id);
    done = found.end;
  }
}

Result<void> Encoder::encode_plain(std::string_view text, std::vector<TokenId>& ids) {
  return outcome_of(encode_range(text, {.from = 0, .to = text.size()}, ids, nullptr));
}

Result<std::size_t> Encoder::encode_range(std::string_view text, PieceRange range, std::vector<TokenId>& ids,
                                          std::vector<PieceBoundary>* boundaries) {
  HF_TRY(const std::optional<std::size_t> end,
         encode_pieces(&PieceFinder::next, text, range, ids, boundaries));
  return *end;
}

Result<std::optional<std::size_t>> Encoder::encode_beginning(std::string_view text, PieceRange range,
                                                             std::vector<TokenId>& ids,
                                                             std::vector<PieceBoundary>* boundaries) {
  return encode_pieces(&PieceFinder::next_in_beginning, text, range, ids, boundaries);
}

// Cuts the text into pieces: the matches of the pattern, and what is between them.
Result<std::optional<std::size_t>> Encoder::encode_pieces(FindPiece find, std::string_view text,
                                                          PieceRange range, std::vector<TokenId>& ids,
                                                          std::vector<PieceBoundary>* boundaries) {
  constexpr std::size_t boundaries_most = 4096;
  std::size_t done = range.from;
  while (done < range.to) {
    if (boundaries != nullptr && boundaries->size() < boundaries_most)
      boundaries->push_back({done, ids.size()});
    HF_TRY(const PieceFinder::Match match, (finder_.*find)(text, done));
    if (match.is_cut) return std::optional<std::size_t>();
    const std::size_t begin = match.begin == match.end ? text.size() : match.begin;
    if (begin > done) encode_piece(text.substr(done, begin - done), ids);
    if (match.end > begin) encode_piece(text.substr(begin, match.end - begin), ids);
    done = std::max(begin, match.end);
  }
  return std::optional(done);
}

void Encoder::encode_piece(std::string_view piece, std::vector<TokenId>& ids) {
  if (piece.size() > PieceCache::text_bytes_max) return merge_piece(piece, ids);
  PieceCache::Slot& slot = cache_.slot_of(piece);
  if (PieceCache::is_hit(slot, piece)) {
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.id_count);
    return;
  }
  const std::size_t before = ids.size();
  merge_piece(piece, ids);
  PieceCache::fill(slot, piece, std::span(ids).subspan(before));
}

void Encoder::merge_piece(std::string_view piece, std::vector<TokenId>& ids) {
  if (tokenizer_.parts_.whole_pieces_first) {
    if (const std::optional<TokenId> whole = tokenizer_.token_of(piece)) {
      ids.push_back(*whole);
      return;
    }
  }
  const std::size_t before = ids.size();
  for (const char byte : piece) ids.push_back(tokenizer_.byte_tokens_[static_cast<std::uint8_t>(byte)]);
  ids.resize(before + merger_.merge(tokenizer_.merges_, std::span(ids).subspan(before)));
}

}  // namespace holdfast::text
