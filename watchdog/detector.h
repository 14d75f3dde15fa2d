// Detector: from what the boards say to a verdict on who hangs. Pure.
//
// A rank is over its time when it has shown no sign of life (signs_of_life.h) for as long as its deadline
// says, and in any case when its phase takes longer than the ceiling. Of a spare its silence counts. A rank
// that waits for storage has until the ceiling: to end it helps nobody, as the next one waits there, too.
//
// Most ranks over their time only wait for another one: the culprit is a sink of the wait-for graph, a rank
// over its time that does not wait, or says that it does and has not looked for a while. Also one that is
// within its time, but stopped or silent in a wait, while others wait for it beyond theirs. A rank that waits
// for others and looks is never the culprit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "watchdog/board.h"

namespace holdfast::inline watchdog {

struct WatchedRank {
  SlotView slot;
  std::string host;
  bool own_host = true;                // only such a one can this guard end
  bool stopped = false;                // state T of /proc
  bool ended = false;                  // its process has; it counts as seen, and is never the culprit
  std::int64_t evidence_since_ns = 0;  // what it did before then is no evidence against it
};

struct HangVerdict {
  enum class Kind : std::uint8_t {
    none,
    culprit,   // `rank` hangs: end it, the others go on
    deadlock,  // everybody waits for the others and looks, some for as long again as they may: level 2
  };
  Kind kind = Kind::none;
  std::size_t index = 0;  // of the culprit in `ranks`
  std::string sentence;   // "rank 2 (host a) hangs: step 9 for 5.2 s, 31 ms are usual; it is stopped"
  struct Another {
    std::size_t index = 0;
    std::string sentence = {};
  };
  std::vector<Another> others = {};  // that hang beside the culprit
};

// Cheap. While it is so of none, there is no verdict.
bool may_hang(const WatchedRank& rank, std::int64_t now_ns);

// A rank that waits looks every some milliseconds. The guard, and who reads flight records, take it for
// silent after this time.
inline constexpr std::int64_t waiting_silent_ns = 2'000'000'000;

// `silent_ns`: a rank that waits looks at least this often. Of several ranks over a learned time only that
// for longest is named, because the others may hang for its sake, and they have their time anew after its
// end. Where no time was learned yet, that would take longer than the others have patience: so all that have
// had nine tenths of it are, if they are fewer than those that wait. While some rank of the run is not among
// `ranks` (SlotView::members), it may be the one that all wait for, so there is no verdict deadlock.
HangVerdict find_culprit(std::span<const WatchedRank> ranks, std::int64_t now_ns, std::int64_t silent_ns);

// One sentence about all ranks that have waited for storage without a sign of life for `quiet_ns`; empty:
// there are none. "ranks 0, 1, 2 (host a) wait for storage for 12.1 s (training data): nobody is ended for it
// before 600 s".
std::string storage_sentence(std::span<const WatchedRank> ranks, std::int64_t now_ns, std::int64_t quiet_ns);

}  // namespace holdfast::inline watchdog
