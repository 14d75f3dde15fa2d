// Detector: derives a report of which rank hangs from the boards of the hosts. Pure.
//
// A rank is over its time when it has shown no sign of life (signs_of_life.h) for as long as its deadline,
// and in any case when its phase takes longer than the ceiling. For a spare, the time without a heartbeat
// counts. A rank that waits for storage has until the ceiling: ending it would not help, as the next one
// would wait there, too. One that is stopped does not wait for storage, and has no more than the floor of all
// deadlines from when it was seen to be stopped, however long its phase may take. One that is in a step while others
// are past their time to come together in a recovery has no more than that either: they end when they have waited for
// twice as long.
//
// Most ranks over their time only wait for another one. The rank that hangs is a sink of the wait-for graph: a rank
// over its time that does not wait, or is marked as waiting and has not polled for a while. A rank within its
// time hangs, too, if it is stopped or silent in a wait while others wait for it beyond their time. A
// rank that waits for others and polls does not hang.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "watchdog/board.h"

namespace holdfast::watchdog {

struct WatchedRank {
  SlotView slot;
  std::string host;
  bool own_host = true;                // this guard can end only ranks of its own host
  bool stopped = false;                // state T of /proc
  std::int64_t stopped_since_ns = 0;   // since when it was seen to be so; 0: not known, or not
  bool ended = false;                  // its process has ended: it counts as seen, and does not hang
  std::int64_t evidence_since_ns = 0;  // earlier behaviour is no evidence against it
};

struct HangReport {
  enum class Kind : std::uint8_t {
    none,
    rank,      // `rank` hangs: end it, the others go on
    deadlock,  // all wait for the others and poll, some for twice their time
  };
  Kind kind = Kind::none;
  std::size_t index = 0;   // index of the rank that hangs in `ranks`
  std::string sentence;    // "rank 2 (host a) hangs: step 9 for 5.2 s, 31 ms are usual; it is stopped"
  bool in_plugin = false;  // it hangs in the kernel of a plug-in that its slot has
  struct Another {
    std::size_t index = 0;
    std::string sentence = {};
    bool in_plugin = false;
  };
  std::vector<Another> others = {};  // ranks that hang beside it
  // Hosts whose ranks are to end in a deadlock, so that the others can go on: a smallest set that explains which hosts
  // wait for each other in vain. Empty: all ranks are to end, because those that wait are of one host, or because
  // the end of some did not help.
  std::vector<std::string> hosts = {};
};

// Returns whether the rank may hang, by a cheap test. There is no report while this is false for all ranks.
bool may_hang(const WatchedRank& rank, std::int64_t now_ns);

// Time without a poll after which the guard, and readers of flight records, take a waiting rank for silent. A
// rank that waits polls every few milliseconds.
inline constexpr std::int64_t waiting_silent_ns = 2'000'000'000;

// Returns a report of the ranks that hang. `silent_ns` is the longest time between two polls of a rank that waits.
// If several ranks are over a learned time, only the one that is over it for longest is named, because the
// others may hang because of it, and their time starts anew after its end. Where no time was learned yet,
// that would take longer than the others' deadlines allow: so all ranks that have used nine tenths of theirs
// are named, if they are fewer than those that wait. While some rank of the run is not among `ranks`
// (SlotView::members), it may be the one that all wait for, so there is no report of a deadlock.
HangReport find_hung_rank(std::span<const WatchedRank> ranks, std::int64_t now_ns, std::int64_t silent_ns);

// Returns one sentence about all ranks that have waited for storage without a sign of life for `quiet_ns`;
// empty if there are none. "ranks 0, 1, 2 (host a) wait for storage for 12.1 s (training data): nobody is
// ended for it before 600 s".
std::string storage_sentence(std::span<const WatchedRank> ranks, std::int64_t now_ns, std::int64_t quiet_ns);

}  // namespace holdfast::watchdog
