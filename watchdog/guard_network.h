// GuardNetwork: the connections of a host's guard to the guards of the other hosts, over TCP (not MPI, which
// may be what hangs), among guards that share the secret of the run (runtime/os/sealed_network.h). Each guard
// listens, calls every other one, and sends it the state of its ranks as its heartbeat. PeerHostMonitor
// decides what follows from it, and the PeerHostTable, into which it is written, shows it to the ranks.
//
// It does nothing until the ranks have made the table. All calls return at once: a connection is made over
// several ticks. Where a host does not answer, the next of its addresses is tried, and each attempt may take
// twice as long as the one before, up to `longest_call_ms`: hosts may be far from each other.
//
// A tick looks at each host, but calls the system only for those that have sent something, or that something
// is sent to. Thread: the guard's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

namespace holdfast::watchdog {

class GuardNetwork {
 public:
  static constexpr std::int64_t first_call_ms = 500, longest_call_ms = 5'000;
  static constexpr std::size_t calls_per_tick = 16;  // a listener keeps few callers that it does not know
  static constexpr std::int64_t heard_within_ms = 10'000;  // or a host is reported as never heard

  // Listens at the address that the board's ranks have given (read_guard_network), and writes the port on the
  // board. `board`, whose name is `name`, outlives it. Error: this host can have no network; then its guard
  // works without one.
  static Result<std::unique_ptr<GuardNetwork>> begin(Env& env, Board& board, const std::string& name,
                                                     const GuardNetworkFacts& facts);

  // Sends and receives what is due. `late`: the previous tick is so long ago that this process must have been
  // stopped.
  void tick(std::int64_t now_ns, bool late);
  // Notes that the guard saw the process of a slot end; the other guards are told from now on.
  void ended(const SlotView& slot);
  bool has_peers() const { return peers_.size() > 1; }
  // Returns whether this host is cut off from the first host of the run, where mpirun usually runs; on the
  // first host itself, whether it is cut off from all others.
  bool is_cut_off() const;
  // Returns the spares of other hosts that their guards saw end since the last call.
  std::vector<WatchedRank> take_lost_spares() { return std::exchange(lost_spares_, {}); }
  // Returns the hosts that have a guard and were not heard since the start, "b (10.0.0.2), c (10.0.0.3)";
  // once, when they had the time for it. Empty before and after that, and if there is none.
  std::string take_never_heard(std::int64_t now_ns);
  // Returns the hosts that are missed, or were not heard in time, if they are others than at the last call.
  std::optional<std::vector<std::string>> take_silent();
  // Returns the names of PeerHostMonitor::leaves_because_of().
  std::vector<std::string> leaves_because_of(std::int64_t now_ns) const;
  // Returns the ranks of hosts in reach, by the clock of this one.
  std::vector<WatchedRank> distant_ranks(std::int64_t now_ns) const;

 private:
  struct Peer {
    std::vector<std::string> addresses = {};
    std::size_t address = 0;  // index of the address that answered last, or the one to try next
    std::unique_ptr<Connection> connection = {};
    std::vector<std::byte> unsent = {};
    bool is_answered = false;  // its guard has proved itself
    bool is_behind = false;    // a heartbeat that is newer than `unsent` was due meanwhile
    std::int64_t called_ns = 0, answered_ns = 0, stuck_since_ns = 0;
    std::int64_t patience_ns = first_call_ms * 1'000'000;  // with the call that is under way, or the next
    // The list of ended processes of a guard only grows; so many of that generation are known.
    std::uint64_t ended_generation = 0;
    std::size_t ended_known = 0;
  };
  struct Caller {
    std::unique_ptr<Connection> connection = {};
    std::vector<std::byte> received = {};
    int host = -1;  // not known before its first message
  };
  GuardNetwork(Env& env, Board& board, std::string name, const Secret& secret)
      : env_(&env), board_(&board), name_(std::move(name)), network_(env, secret, "guard") {}
  bool find_table(std::int64_t now_ns);
  void show(std::int64_t now_ns);
  void listen_to_callers(std::int64_t now_ns);
  void accept_callers();
  bool listen_to(Caller& caller, std::int64_t now_ns);
  void note_ended(const GuardMessage& message, std::int64_t now_ns);
  void note_lost_spare(const EndedProcess& ended, const GuardMessage& message,
                       const std::vector<WatchedRank>& before);
  void understand(Caller& caller, const GuardMessage& message, std::int64_t now_ns);
  bool needs_call(std::size_t host, std::int64_t now_ns);
  void call_some(std::int64_t now_ns);
  void beat(std::int64_t now_ns);
  void send(Peer& peer, std::int64_t now_ns);
  static void give_up(Peer& peer);
  const std::vector<std::byte>& frame(std::int64_t now_ns);
  GuardMessage own_message(std::int64_t now_ns);

  Env* env_;
  Board* board_;
  std::string name_;
  SealedNetwork network_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<PeerHostTable> table_;
  std::unique_ptr<PeerHostMonitor> sight_;
  std::uint64_t start_ = 0;
  std::int64_t beat_every_ns_ = 0, stuck_limit_ns_ = 0;
  std::vector<Peer> peers_;  // by host; the entry of this host is empty
  std::vector<Caller> callers_;
  std::vector<EndedProcess> ended_;
  std::vector<WatchedRank> lost_spares_;
  std::vector<std::int32_t> missed_;   // hosts, as of the newest tick
  bool silent_changed_ = false;        // since take_silent()
  std::vector<std::byte> frame_ = {};  // newest heartbeat
  std::int64_t framed_ns_ = 0;         // its time
  std::int64_t looked_for_table_ns_ = 0, beat_ns_ = 0;
  std::int64_t hear_until_ns_ = 0;  // when hosts that were never heard are reported; 0: they have been
  std::uint64_t number_ = 0;
  std::size_t next_call_ = 0;
};

}  // namespace holdfast::watchdog
