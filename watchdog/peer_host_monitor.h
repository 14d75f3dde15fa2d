// PeerHostMonitor: what follows for one host from what it hears of the others, and from what it does not.
// Pure.
//
//   - A host that was heard and says nothing for `silence_ns` is out of reach. One that was never heard is
//     not: its guard may be unable to reach anybody.
//   - A host that says that it does not hear this one is out of reach, too: the link works in one direction.
//   - A guard that closes its connection while it is heard has ended, its host has not gone silent: its ranks
//     have, too, or start another one. Where neither shows for two silences, nobody may ever hear what became
//     of them (the host went down behind its processes), and the host is out of reach for one silence more:
//     long enough for everybody who still waits. Those that have gone on without it by then are not
//     concerned, and afterwards nothing is said until the host is heard again.
//   - Processes that the guard of their host saw end are dead; silence is no proof of that.
//
// What is refused changes nothing: a message of another start, of a guard that another one has followed, that
// came twice, or that a newer one has overtaken.
#pragma once

#include <cstdint>
#include <vector>

#include "watchdog/detector.h"
#include "watchdog/guard_message.h"

namespace holdfast::inline watchdog {

class PeerHostMonitor {
 public:
  PeerHostMonitor(const PeerHostTableSetup& setup);

  // False: it is refused.
  bool heard(const GuardMessage& message, std::int64_t now_ns);
  void closed(int host, std::int64_t now_ns);
  // This guard looked late, so it could not hear anybody meanwhile: all count as heard now.
  void looked_late(std::int64_t now_ns);

  bool out_of_reach(int host, std::int64_t now_ns) const;
  std::int64_t heard_ns(int host) const;                        // of the last message; 0: never
  std::vector<std::int32_t> silent(std::int64_t now_ns) const;  // hosts that this one does not hear
  // Of hosts in reach, as their last message says, by the clock of this one; those that ended, too.
  std::vector<WatchedRank> ranks(std::int64_t now_ns) const;

 private:
  struct Host {
    std::string name = {};
    bool watched = false;
    std::int64_t heard_ns = 0, received_ns = 0;  // received: of `last`; heard: or taken for that
    std::int64_t closed_ns = 0;                  // its guard has ended since then; 0: it has not
    bool deaf = false;
    GuardMessage last = {};
  };
  bool is_silent(int host, std::int64_t now_ns) const;
  bool is_lost_behind_guard(const Host& host, std::int64_t now_ns) const;

  std::uint64_t start_;
  int own_host_;
  std::int64_t silence_ns_;
  std::vector<Host> hosts_;
};

}  // namespace holdfast::inline watchdog
