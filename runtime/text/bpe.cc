#include "runtime/text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/core/check.h"

namespace holdfast::text {
namespace {

constexpr std::uint32_t nowhere = ~std::uint32_t{0};

}  // namespace

MergeTable::MergeTable(std::span<const Merge> merges) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(16, 2 * merges.size()));
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
  for (const Merge& merge : merges) {
    const std::uint64_t key = key_of(merge.left, merge.right);
    std::size_t slot = slot_of(key);
    while (slots_[slot].found.rank != no_rank && slots_[slot].key != key) slot = (slot + 1) & mask_;
    slots_[slot] = {.key = key, .found = {.rank = merge.rank, .result = merge.result}};
  }
}

std::size_t PieceMerger::merge(const MergeTable& table, std::span<TokenId> ids) {
  constexpr std::size_t short_most = 64;
  return ids.size() <= short_most ? merge_short(table, ids) : merge_long(table, ids);
}

// Looks at every pair for the best one, again and again: of few tokens that is faster than a heap.
std::size_t PieceMerger::merge_short(const MergeTable& table, std::span<TokenId> ids) {
  std::size_t count = ids.size();
  std::array<MergeTable::Found, 64> pairs;  // of each token with the next one
  for (std::size_t i = 0; i + 1 < count; ++i) pairs[i] = table.find(ids[i], ids[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == MergeTable::no_rank) break;
    ids[best] = pairs[best].result;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      ids[i] = ids[i + 1];
      pairs[i - 1] = pairs[i];
    }
    if (best > 0) pairs[best - 1] = table.find(ids[best - 1], ids[best]);
    if (best + 1 < count) pairs[best] = table.find(ids[best], ids[best + 1]);
  }
  return count;
}

void PieceMerger::add_candidate(const MergeTable& table, std::span<const TokenId> ids, std::uint32_t left,
                                std::uint32_t right) {
  const MergeTable::Found found = table.find(ids[left], ids[right]);
  if (found.rank == MergeTable::no_rank) return;
  heap_.push_back({.rank = found.rank, .position = left, .result = found.result});
}

std::size_t PieceMerger::merge_long(const MergeTable& table, std::span<TokenId> ids) {
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto count = static_cast<std::uint32_t>(ids.size());
  next_.resize(count);
  previous_.resize(count);
  heap_.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    previous_[i] = i == 0 ? nowhere : i - 1;
    next_[i] = i + 1 == count ? nowhere : i + 1;
    if (i + 1 < count) add_candidate(table, ids, i, i + 1);
  }
  std::ranges::make_heap(heap_, later);
  const auto push = [&](std::uint32_t left, std::uint32_t right) {
    const std::size_t before = heap_.size();
    add_candidate(table, ids, left, right);
    if (heap_.size() > before) std::ranges::push_heap(heap_, later);
  };
  constexpr TokenId removed = ~TokenId{0};
  while (!heap_.empty()) {
    std::ranges::pop_heap(heap_, later);
    const Candidate best = heap_.back();
    heap_.pop_back();
    const std::uint32_t left = best.position;
    const std::uint32_t right = ids[left] == removed ? nowhere : next_[left];
    if (right == nowhere) continue;
    const MergeTable::Found now = table.find(ids[left], ids[right]);
    if (now.rank != best.rank || now.result != best.result) continue;  // one of the two has changed since
    ids[left] = best.result;
    ids[right] = removed;
    next_[left] = next_[right];
    if (next_[left] != nowhere) previous_[next_[left]] = left;
    if (previous_[left] != nowhere) push(previous_[left], left);
    if (next_[left] != nowhere) push(left, next_[left]);
  }
  std::size_t kept = 0;
  for (std::uint32_t i = 0; i != nowhere; i = next_[i]) ids[kept++] = ids[i];
  return kept;
}

PieceCache::Slot& PieceCache::slot_of(std::string_view piece) {
  return slots_[static_cast<std::size_t>(hash_of_piece(piece) >> 32) & (slot_count - 1)];
}

void PieceCache::fill(Slot& slot, std::string_view piece, std::span<const TokenId> ids) {
  if (ids.size() > ids_max || ids.empty()) return;
  HF_CHECK(piece.size() <= text_bytes_max);
  slot.text_bytes = static_cast<std::uint8_t>(piece.size());
  slot.id_count = static_cast<std::uint8_t>(ids.size());
  std::ranges::copy(piece, slot.text.begin());
  std::ranges::copy(ids, slot.ids.begin());
}

std::uint64_t hash_of_piece(std::string_view piece) {
  constexpr std::uint64_t factor = 0x9E3779B97F4A7C15u;
  std::uint64_t hash = piece.size() * factor;
  const auto mix = [&](std::uint64_t word) {
    hash = (hash ^ word) * factor;
    hash ^= hash >> 29;
  };
  std::uint64_t word = 0;
  while (piece.size() > sizeof(word)) {
    std::memcpy(&word, piece.data(), sizeof(word));
    mix(word);
    piece.remove_prefix(sizeof(word));
  }
  word = 0;
  std::memcpy(&word, piece.data(), piece.size());
  mix(word);
  return hash * factor;
}

}  // namespace holdfast::text
