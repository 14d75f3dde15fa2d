// Byte pair encoding of one piece of text: adjacent tokens become one, the pair with the lowest rank first, and of equal
// ones the first in the text, until no pair has a rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace holdfast::text {

using TokenId = std::uint32_t;

struct Merge {
  TokenId left = 0, right = 0;
  std::uint32_t rank = 0;
  TokenId result = 0;
};

// A hash table of merges. Threads: const methods from any.
class MergeTable {
 public:
  static constexpr std::uint32_t no_rank = ~std::uint32_t{0};
  struct Found {
    std::uint32_t rank = no_rank;
    TokenId result = 0;
  };

  MergeTable() : MergeTable(std::span<const Merge>()) {}
  explicit MergeTable(std::span<const Merge> merges);  // of one pair the last counts
  Found find(TokenId left, TokenId right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].found;
      if (slots_[slot].found.rank == no_rank) return {};
    }
  }

 private:
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};
    Found found;
  };
  static std::uint64_t key_of(TokenId left, TokenId right) {
    return std::uint64_t{left} << 32 | std::uint64_t{right};
  }
  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  int shift_ = 63;
};

// Merges the tokens of pieces. Keeps its memory from one piece to the next.
class PieceMerger {
 public:
  // Replaces `ids` by the tokens after all merges; returns how many they are.
  std::size_t merge(const MergeTable& table, std::span<TokenId> ids);

 private:
  std::size_t merge_short(const MergeTable& table, std::span<TokenId> ids);
  std::size_t merge_long(const MergeTable& table, std::span<TokenId> ids);

  struct Candidate {
    std::uint32_t rank, position;
    TokenId result;
  };
  void add_candidate(const MergeTable& table, std::span<const TokenId> ids, std::uint32_t left,
                     std::uint32_t right);
  std::vector<Candidate> heap_;
  std::vector<std::uint32_t> next_, previous_;
};

// Remembers the tokens of short pieces: most of a text are the same few thousand words. A new piece takes the place
// of another one; nothing is ever allocated.
class PieceCache {
 public:
  static constexpr std::size_t text_bytes_max = 34, ids_max = 7;
  PieceCache() : slots_(slot_count) {}

  // Returns the slot of the piece, which has no more than text_bytes_max bytes; is_hit() tells whether it holds it.
  struct Slot {
    std::uint8_t text_bytes = 0, id_count = 0;  // id_count 0: empty
    std::array<char, text_bytes_max> text = {};
    std::array<TokenId, ids_max> ids = {};
  };
  Slot& slot_of(std::string_view piece);
  static bool is_hit(const Slot& slot, std::string_view piece) {
    return slot.id_count > 0 && std::string_view(slot.text.data(), slot.text_bytes) == piece;
  }
  static void fill(Slot& slot, std::string_view piece, std::span<const TokenId> ids);

 private:
  static constexpr std::size_t slot_count = std::size_t{1} << 16;
  std::vector<Slot> slots_;
};

// Returns a hash of a piece, for tables of this layer.
std::uint64_t hash_of_piece(std::string_view piece);

}  // namespace holdfast::text
