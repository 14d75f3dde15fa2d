// Detector: from what the boards say to a verdict on who hangs. Pure.
//
// A rank is over its time when its phase is past the deadline; of a spare its silence counts. Most of those
// only wait for another one: the culprit is a sink of the wait-for graph, a rank over its time that does not
// wait, or says that it does and has not looked for a while. Also one that is within its time, but stopped or
// silent in a wait, while others wait for it beyond theirs. A rank that waits for others and looks is never
// it.
//
// Where a rank has no learned time yet, what the others show counts: it does not wait, they all do and look,
// so they have come as far as they can without it. It may then take what one of these gives:
//   - others that do the same work (SlotView::role) in the same step have needed so long for it
//     (Deadlines::alone_among);
//   - where there are none: it is stopped, which no work explains;
//   - it did such a thing before in this epoch, and needed so long (Deadlines::longest), or the others
//     do now;
//   - one of the others is about to give up (Deadlines::alone_until), which helps nobody.
// In the latter two it must also have begun no span for so long: one that works shows it, and is only slow.
// Several may hang so at once, as long as they are fewer than the others, and every one has had its time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "watchdog/board.h"

namespace holdfast {

struct WatchedRank {
  SlotView slot;
  std::string host;
  bool own_host = true;        // only such a one can this guard end
  bool stopped = false;        // state T of /proc
  bool ended = false;          // its process has; it counts as seen, and is never the culprit
  std::int64_t anew_ns = 0;    // what it did before then is no evidence against it
  std::int64_t worked_ns = 0;  // when it was last seen to have begun a span; 0: never, or not known
};

struct HangVerdict {
  enum class Kind : std::uint8_t {
    none,
    culprit,  // `rank` hangs: end it, the others go on
    no_sink,  // everybody waits for the others and looks, some for as long again as they may: level 2
  };
  Kind kind = Kind::none;
  std::size_t index = 0;  // of the culprit in `ranks`
  std::string
      sentence;  // "rank 2 (host a) hangs: step 9 (forward) for 5.2 s, 31 ms are usual; it is stopped"
  struct Another {
    std::size_t index = 0;
    std::string sentence = {};
  };
  std::vector<Another> others = {};  // that hang beside the culprit, by the same evidence
};

// Cheap. While it is so of none, there is no verdict.
bool may_hang(const WatchedRank& rank, std::int64_t now_ns);

// `silent_ns`: a rank that waits looks at least this often. Of ranks that are over a time of their own only
// one: that for longest, because the others may hang for its sake. While some rank of the run is not among
// `ranks` (SlotView::members), it may be the one that all wait for, so there is no verdict no_sink.
HangVerdict find_culprit(std::span<const WatchedRank> ranks, std::int64_t now_ns, std::int64_t silent_ns);

}  // namespace holdfast
