// GuardNetwork: what the guard of a host hears of the guards of the others, over TCP (no MPI, which may be
// what hangs) between those that share the secret of the run (runtime/os/sealed_network.h). Each guard
// listens, calls every other one, and tells it ten times a second how its ranks are; what follows from that
// is decided by PeerHostMonitor and written into the PeerHostTable, where the ranks see it.
//
// It pauses for a resize until the ranks have made the table. All calls return at once, but for a call to a
// host that does not answer, which may take `call_patience_ms`, at most one a tick. Thread: the guard's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/network.h"
#include "runtime/os/sealed_network.h"
#include "watchdog/board.h"
#include "watchdog/detector.h"
#include "watchdog/peer_host_monitor.h"
#include "watchdog/peer_host_table.h"

namespace holdfast::inline watchdog {

class GuardNetwork {
 public:
  static constexpr std::int64_t beat_ms = 100;  // and 5 ms more for each host beyond the twentieth
  static constexpr std::int64_t call_patience_ms = 50;

  // Listens as the board's ranks have told (read_guard_network), and says on the board where. `board`, whose
  // name is `name`, outlives it. Error: this host can have no network; then its guard does without.
  static Result<std::unique_ptr<GuardNetwork>> begin(Env& env, Board& board, const std::string& name,
                                                     const GuardNetworkFacts& facts);

  // `late`: the tick before is so long ago that this process must have stood still.
  void tick(std::int64_t now_ns, bool late);
  // The guard saw the process of a slot end; it is told to the others from now on.
  void ended(const SlotView& slot);
  bool has_peers() const { return peers_.size() > 1; }
  // From the first host of the run, where as a rule mpirun is; the first host itself: from all others.
  bool is_cut_off() const;
  // Spares of other hosts that their guards saw end, since the last time.
  std::vector<WatchedRank> take_lost_spares() { return std::exchange(lost_spares_, {}); }
  // Those of hosts in reach, by the clock of this one.
  std::vector<WatchedRank> distant_ranks(std::int64_t now_ns) const;

 private:
  struct Peer {
    std::vector<std::string> addresses = {};
    std::size_t address = 0;  // that answered last, or the one to try next
    std::unique_ptr<Connection> connection = {};
    std::vector<std::byte> unsent = {};
    std::int64_t called_ns = 0, stuck_since_ns = 0;
  };
  struct Caller {
    std::unique_ptr<Connection> connection = {};
    std::vector<std::byte> received = {};
    int host = -1;  // not known before its first message
  };
  GuardNetwork(Env& env, Board& board, std::string name, const Secret& secret)
      : env_(&env), board_(&board), name_(std::move(name)), network_(env, secret, "guard") {}
  bool find_table(std::int64_t now_ns);
  void listen_to_callers(std::int64_t now_ns);
  bool listen_to(Caller& caller, std::int64_t now_ns);
  void note_lost_spares(const GuardMessage& message, std::int64_t now_ns);
  void understand(Caller& caller, const GuardMessage& message, std::int64_t now_ns);
  bool needs_call(std::size_t host, std::int64_t now_ns);
  void call_somebody(std::int64_t now_ns);
  void beat(std::int64_t now_ns);
  void send(Peer& peer, std::int64_t now_ns);
  GuardMessage own_message(std::int64_t now_ns);

  Env* env_;
  Board* board_;
  std::string name_;
  SealedNetwork network_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<PeerHostTable> table_;
  std::unique_ptr<PeerHostMonitor> sight_;
  std::vector<Peer> peers_;  // by host; nothing in the place of this one
  std::vector<Caller> callers_;
  std::vector<EndedProcess> ended_;
  std::vector<WatchedRank> lost_spares_;
  std::int64_t looked_for_table_ns_ = 0, beat_ns_ = 0;
  std::uint64_t number_ = 0;
  std::size_t next_call_ = 0;
};

}  // namespace holdfast::inline watchdog
