#include "runtime/rank/memory_fit.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace holdfast::rank {
namespace {

using Ranks = std::vector<const RankMemory*>;

// Groups the ranks that share memory: those of a host, unless each of them has a control group of its own
// that limits its memory.
std::vector<Ranks> sharing_ranks(std::span<const RankMemory> ranks) {
  std::map<std::string, Ranks> by_host;
  for (const RankMemory& rank : ranks)
    by_host[rank.host_id.empty() ? rank.host : rank.host_id].push_back(&rank);
  std::vector<Ranks> groups;
  for (const auto& [host, sharers] : by_host) {
    std::set<std::string> limits;
    for (const RankMemory* rank : sharers) {
      if (rank->room.has_value() && !rank->room->limited_by.empty()) limits.insert(rank->room->limited_by);
    }
    if (limits.size() < sharers.size()) {
      groups.push_back(sharers);
      continue;
    }
    for (const RankMemory* rank : sharers) groups.push_back({rank});
  }
  return groups;
}

struct Sums {
  std::uint64_t own = 0, own_new = 0, shared = 0, shared_new = 0;
  std::uint64_t given_back = 0;  // ordinary memory that ranks hold and need no longer
  std::uint64_t unneeded = 0, resumed = 0;
  std::optional<std::uint64_t> available, total, shared_free;
};

void lower_to(std::optional<std::uint64_t>& least, std::uint64_t other) {
  least = std::min(least.value_or(other), other);
}

Sums sums_of(const Ranks& ranks, const SnapshotRoom& room) {
  Sums sums;
  for (const RankMemory* rank : ranks) {
    const RankMemory::Need& need = rank->need[static_cast<std::size_t>(room.tiers)];
    sums.own += need.own_bytes;
    sums.own_new += need.own_bytes - std::min(need.own_bytes, rank->kept_bytes);
    sums.given_back += rank->kept_bytes - std::min(need.own_bytes, rank->kept_bytes);
    sums.shared += need.shared_bytes;
    sums.shared_new += need.shared_bytes - (room.third_slot_later ? rank->slot_bytes : 0);
    // All ranks of a host see the same snapshots.
    sums.unneeded = std::max(sums.unneeded, rank->unneeded_bytes);
    sums.resumed = std::max(sums.resumed, rank->resumed_bytes);
    if (rank->shared_free.has_value()) lower_to(sums.shared_free, *rank->shared_free);
    if (!rank->room.has_value()) continue;
    lower_to(sums.available, rank->room->available_bytes);
    lower_to(sums.total, rank->room->total_bytes);
  }
  return sums;
}

struct Lack {
  bool lacks = false, is_of_shared_memory = false;
  std::uint64_t needed = 0, available = 0;
};

// Returns what is lacking at the moment. Unneeded snapshots count as free memory, because they are removed or
// reused.
Lack lack_now(const Sums& sums) {
  if (sums.shared_free.has_value() && sums.shared_new > *sums.shared_free + sums.unneeded) {
    return {.lacks = true,
            .is_of_shared_memory = true,
            .needed = sums.shared_new,
            .available = *sums.shared_free + sums.unneeded};
  }
  const std::uint64_t needed = sums.own_new + sums.shared_new;
  const std::uint64_t available = sums.available.value_or(needed) + sums.given_back + sums.unneeded;
  return {.lacks = needed > available, .needed = needed, .available = available};
}

// Returns whether the ranks fit if no other process holds any memory.
bool fits_empty(const Sums& sums) {
  if (sums.shared_free.has_value() && sums.shared > *sums.shared_free + sums.unneeded + sums.resumed)
    return false;
  return !sums.total.has_value() || sums.own + sums.shared <= *sums.total;
}

// Returns the choices from best to worst. A third slot comes later if an older snapshot stays meanwhile.
std::vector<SnapshotRoom> choices(const FitQuestion& question) {
  const bool resumes_from_memory =
      std::ranges::any_of(question.ranks, [](const RankMemory& rank) { return rank.resumed_bytes > 0; });
  std::vector<SnapshotRoom> rooms;
  for (int tiers = static_cast<int>(question.wanted); tiers >= 0; --tiers) {
    rooms.push_back({.tiers = static_cast<SnapshotTiers>(tiers), .third_slot_later = false});
    if (tiers > 0 && resumes_from_memory)
      rooms.push_back({.tiers = static_cast<SnapshotTiers>(tiers), .third_slot_later = true});
  }
  return rooms;
}

// Fills in which memory is lacking on which host with this choice; false if none is.
bool note_lack(FitAnswer& answer, const std::vector<Ranks>& groups, const SnapshotRoom& room) {
  for (const Ranks& group : groups) {
    const Sums sums = sums_of(group, room);
    const Lack lack = lack_now(sums);
    if (!lack.lacks) continue;
    answer.host = group.front()->host;
    answer.is_of_shared_memory = lack.is_of_shared_memory;
    answer.needed_bytes = lack.needed;
    answer.available_bytes = lack.available;
    answer.total_bytes = sums.total.value_or(0);
    return true;
  }
  return false;
}

bool needs_room_first(const std::vector<Ranks>& groups, const SnapshotRoom& room) {
  return std::ranges::any_of(groups, [&](const Ranks& group) {
    const Sums sums = sums_of(group, room);
    return sums.available.has_value() && sums.own_new > *sums.available + sums.given_back;
  });
}

}  // namespace

FitAnswer decide_fit(const FitQuestion& question) {
  using Kind = FitAnswer::Kind;
  const std::vector<Ranks> groups = sharing_ranks(question.ranks);
  const std::vector<SnapshotRoom> rooms = choices(question);
  std::optional<SnapshotRoom> now, empty;
  for (const SnapshotRoom& room : rooms) {
    FitAnswer unused;
    if (!now.has_value() && !note_lack(unused, groups, room)) now = room;
    const bool has_place =
        std::ranges::all_of(groups, [&](const Ranks& group) { return fits_empty(sums_of(group, room)); });
    if (!empty.has_value() && has_place) empty = room;
  }
  FitAnswer answer;
  const SnapshotRoom least = rooms.back();
  // Tiers that are worth a wait: those that the run had, as far as waiting can provide them.
  const SnapshotTiers goal =
      empty.has_value() ? std::min(question.waits_for, empty->tiers) : SnapshotTiers::none;
  if (now.has_value() && (now->tiers >= goal || question.time_is_over)) {
    answer.kind = Kind::fits;
    answer.room = *now;
    answer.removes_snapshots_first = needs_room_first(groups, *now);
    if (now->tiers < question.wanted) {
      SnapshotTiers next = static_cast<SnapshotTiers>(static_cast<int>(now->tiers) + 1);
      note_lack(answer, groups, {.tiers = next, .third_slot_later = false});
    }
    return answer;
  }
  answer.kind = !empty.has_value() ? Kind::too_large : question.time_is_over ? Kind::lacks : Kind::wait;
  answer.room = answer.kind == Kind::wait ? SnapshotRoom{.tiers = goal, .third_slot_later = false} : least;
  note_lack(answer, groups, answer.room);
  return answer;
}

}  // namespace holdfast::rank
