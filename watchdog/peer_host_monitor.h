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
//   - Two hosts that do not hear each other while a third one hears both have lost the link between them, and nothing
//     else. Every guard finds the same smallest set of hosts whose end explains it (watchdog/fewest_hosts.h). They leave the run: the
//     third host hears of it and proves it to the others, which go on in place. So a host that is heard elsewhere is
//     missed, but for two silences more not out of reach. The first host of the run is, as mpirun is usually there: it
//     would not hear of a death over that link, nor would MPI.
//
// A host sends a heartbeat ten times a second while the run has at most 200 hosts, and more rarely in larger
// runs, so that a guard never hears more than about 2,000 of them a second. The silence is at least five
// heartbeats long, because a heartbeat may be lost or late.
//
// A message that is refused changes nothing: one of another start, one of a guard that another guard has
// followed, one that came twice, and one that a newer one has overtaken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "watchdog/detector.h"
#include "watchdog/fewest_hosts.h"
#include "watchdog/guard_message.h"

namespace holdfast::watchdog {

// Returns the time between two heartbeats of a host in a run on so many hosts.
inline std::int64_t beat_ms_of(std::size_t hosts) {
  constexpr std::int64_t shortest_ms = 100, hosts_per_ms = 2;
  return std::max(shortest_ms, static_cast<std::int64_t>(hosts) / hosts_per_ms);
}
// Returns how long a host may send nothing before it is unreachable: `floor_ms`, or longer in a large run.
inline std::int64_t silence_ms_of(std::size_t hosts, std::int64_t floor_ms) {
  constexpr std::int64_t beats = 5;
  return std::max(floor_ms, beats * beat_ms_of(hosts));
}

class PeerHostMonitor {
 public:
  PeerHostMonitor(const PeerHostTableSetup& setup);

  // Returns whether a message would be taken into account.
  bool accepts(const GuardMessage& message) const;
  // Takes a message into account. Returns false if it is refused.
  bool heard(const GuardMessage& message, std::int64_t now_ns);
  void closed(int host, std::int64_t now_ns);
  // Says that this guard looked late and could not hear any host meanwhile: all count as heard now.
  void looked_late(std::int64_t now_ns);

  // Returns whether this host and that one do not hear each other.
  bool misses(int host, std::int64_t now_ns) const;
  std::vector<std::int32_t> missed(std::int64_t now_ns) const;
  // Returns the missed hosts whose ranks nobody can prove to be dead, because no other host hears them, because they did
  // not leave in time, or because the first host is at one end: ranks here wait for them in vain.
  std::vector<std::int32_t> out_of_reach(std::int64_t now_ns) const;
  // Returns the hosts that this one misses and others hear, if it is this one that has to leave the run for that.
  std::vector<std::int32_t> leaves_because_of(std::int64_t now_ns) const;
  std::int64_t heard_ns(int host) const;                        // time of the last message; 0: never
  std::vector<std::int32_t> silent(std::int64_t now_ns) const;  // hosts that this one does not hear
  // Returns the hosts whose guard listens, and from which no message has ever come.
  std::vector<std::int32_t> never_heard() const;
  // Returns the ranks of hosts in reach as of their last message, by the clock of this one; includes ended
  // ranks.
  std::vector<WatchedRank> ranks(std::int64_t now_ns) const;

 private:
  struct Host {
    std::string name = {};
    bool has_guard = false, watched = false;
    std::int64_t heard_ns = 0,
                 received_ns = 0;    // received: time of `last`; heard: or assumed so
    std::int64_t closed_ns = 0;      // when its guard ended after `last`; 0: it has not
    std::int64_t deaf_since_ns = 0;  // since when it says that it does not hear this host; 0: it hears it
    GuardMessage last = {};
  };
  bool is_silent(int host, std::int64_t now_ns) const;
  bool is_lost_behind_guard(const Host& host, std::int64_t now_ns) const;
  std::int64_t missed_since_ns(int host, std::int64_t now_ns) const;
  bool is_heard(int host, std::int64_t now_ns) const;
  bool is_heard_elsewhere(int host, std::int64_t now_ns) const;
  std::vector<SilentPair> broken_links(std::int64_t now_ns) const;

  std::uint64_t start_;
  int own_host_;
  std::int64_t silence_ns_;
  std::vector<Host> hosts_;
};

}  // namespace holdfast::watchdog
