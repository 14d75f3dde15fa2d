// PeerHostMonitor: decides for one host which other hosts and processes are lost, from the messages that it
// hears and from those that are missing. Pure.
//
//   - A host that was heard and sends nothing for `silence_ns` is unreachable. One that was never heard is
//     not: its guard may be unable to reach any host.
//   - A host that says that it does not hear this one is unreachable, too: the link works in one direction.
//   - A guard that closes its connection while it is heard has ended, its host has not gone silent: its ranks
//     have ended, too, or start another guard. Where neither shows for two silences, it may never be known
//     what became of them (the host went down after its processes), and the host is unreachable for one
//     silence more: long enough for all ranks that still wait. Ranks that have gone on without it by then are
//     not concerned, and afterwards nothing is said until the host is heard again.
//   - Processes that the guard of their host saw end are dead; silence is no proof of that.
//
// A message that is refused changes nothing: one of another start, one of a guard that another guard has
// followed, one that came twice, and one that a newer one has overtaken.
#pragma once

#include <cstdint>
#include <vector>

#include "watchdog/detector.h"
#include "watchdog/guard_message.h"

namespace holdfast::inline watchdog {

class PeerHostMonitor {
 public:
  PeerHostMonitor(const PeerHostTableSetup& setup);

  // Takes a message into account. Returns false if it is refused.
  bool heard(const GuardMessage& message, std::int64_t now_ns);
  void closed(int host, std::int64_t now_ns);
  // Says that this guard looked late and could not hear any host meanwhile: all count as heard now.
  void looked_late(std::int64_t now_ns);

  bool out_of_reach(int host, std::int64_t now_ns) const;
  std::int64_t heard_ns(int host) const;                        // time of the last message; 0: never
  std::vector<std::int32_t> silent(std::int64_t now_ns) const;  // hosts that this one does not hear
  // Returns the ranks of hosts in reach as of their last message, by the clock of this one; includes ended
  // ranks.
  std::vector<WatchedRank> ranks(std::int64_t now_ns) const;

 private:
  struct Host {
    std::string name = {};
    bool watched = false;
    std::int64_t heard_ns = 0,
                 received_ns = 0;  // received: time of `last`; heard: or assumed so
    std::int64_t closed_ns = 0;    // when its guard ended after `last`; 0: it has not
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
