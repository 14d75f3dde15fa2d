// Board: what every rank of one host is at, in shared memory, where the guard of the host and whoever looks
// into a run can read it, also when the rank hangs or is dead.
//
//   HF_TRY(std::unique_ptr<Board> board, Board::open_or_create(env, name, BoardSize{.slots = 8}));
//   BoardSlot& slot = board->slot(rank_on_host);
//
// One process writes a slot, the guard reads it: every word that both touch is an atomic of its own, so a
// reader sees a mixture of two moments at worst, never half a word. What must be seen together is written
// between two increments of `version` (odd: being written; read_slot() retries).
//
// Whoever looks after the board removes it when nobody is left: it closes it first, and a rank that comes
// then finds a closed board, which counts for nothing, and makes another one.
//
// Layout: a BoardHeader, `slots` x BoardSlot, then `slots` rings of `ring_spans` x Span (span_recorder.h),
// the flight record of each rank. Fixed-width fields; the header says the version of the layout, and a board
// of another one is an error.
//
// Threads: a slot's words are for the training thread of its rank, those marked (any) for every thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/process_identity.h"
#include "runtime/os/secret.h"
#include "runtime/os/span_recorder.h"
#include "watchdog/phase.h"

namespace holdfast::inline watchdog {

// The shared memory of one start of a run on one host. `start`: what all ranks of the start know before MPI
// (runtime/rank/watch.h).
std::string board_name(const std::string& start);

inline constexpr std::size_t board_text_bytes = 256;

struct alignas(64) BoardSlot {
  // Who. `process` 0: free; negative: just being taken by that one. Set once, by the rank that takes the
  // slot.
  std::atomic<std::int64_t> process{0};
  std::atomic<std::int64_t> started_ticks{0};  // ProcessFacts: with the id it names a process for good
  std::atomic<std::int64_t> parent{0};         // who started it: a daemon of MPI on hosts other than mpirun's
  std::atomic<std::int64_t> parent_started_ticks{0};
  std::atomic<std::int32_t> launched_rank{-1};
  std::atomic<std::uint32_t> version{0};
  // What it is at.
  std::atomic<std::uint32_t> phase{0};
  std::atomic<std::uint32_t> left{0};  // 1: it is about to end by itself, whatever its exit code
  std::atomic<std::uint64_t> step{0};
  std::atomic<std::uint64_t> epoch{0};        // of the membership
  std::atomic<std::uint32_t> members{0};      // of it, spares too; 0: not known
  std::atomic<std::int64_t> begun_ns{0};      // of the phase, or of its last mark(); monotonic clock
  std::atomic<std::uint32_t> kind{0};         // WorkKind
  std::atomic<std::int64_t> deadline_ns{0};   // how long it may show no sign of life; 0: no limit
  std::atomic<std::int64_t> ceiling_ns{0};    // and how long it may take with them; 0: as the deadline
  std::atomic<std::int64_t> median_ns{0};     // how long it takes as a rule; 0: not known
  std::atomic<std::int64_t> heartbeat_ns{0};  // last sign of life of the training thread
  // What it waits for, that another rank does. `wait_begun_ns` 0: it does not wait. While it waits
  // heartbeat_ns is written at every look, so a rank that says that it waits and does not beat is the one
  // that hangs.
  std::atomic<std::int64_t> wait_begun_ns{0};
  std::atomic<std::int32_t> wait_peer{-1};    // launched rank; -1: not known, or any
  std::atomic<std::uint32_t> wait_number{0};  // of the collective or exchange among those of the communicator
  std::array<std::atomic<std::uint64_t>, 4> wait_operation{};  // its name, cut to 31 bytes and a 0
  // It waits for a file system: since when, and what it reads or locks. 0: it does not. Nothing is written
  // there while it waits, for the call blocks.
  std::atomic<std::int64_t> storage_begun_ns{0};
  std::array<std::atomic<std::uint64_t>, 4> storage_what{};
  // What its background threads are at (any): a save that drains. 0: nothing.
  std::atomic<std::int64_t> drain_begun_ns{0};
  std::atomic<std::uint64_t> drain_step{0};
  std::atomic<std::uint64_t> drain_bytes{0};
  // Signs of life (any): bytes that it copied, loaded or saved, and ops that its device has done. Only their
  // growth means something.
  std::atomic<std::uint64_t> moved_bytes{0};
  std::atomic<std::uint64_t> device_ops{0};
  // When the guard last saw one of those, or of those that it finds in /proc (signs_of_life.h); its word.
  std::atomic<std::int64_t> life_ns{0};
  // The flight ring. Each span that is begun is a sign of life, too.
  std::atomic<std::uint64_t> spans_opened{0};
  std::atomic<std::uint32_t> ring_spans{0};
};

// Sentences about ranks, by the guard for the ranks, the newest some of them: write_notice(), read_notices().
struct BoardNotices {
  static constexpr std::uint64_t kept = 8;
  struct Entry {
    std::atomic<std::int32_t> rank{-1};
    std::array<std::atomic<std::uint64_t>, board_text_bytes / 8> sentence{};
    std::atomic<std::uint64_t> number{0};  // 0: being written, or never
  };
  std::atomic<std::uint64_t> count{0};  // of all that there were
  std::array<Entry, kept> newest{};     // number n has the place n % kept
};

struct BoardHeader {
  std::atomic<std::uint64_t> magic{0};
  std::uint32_t layout = 0, slots = 0, ring_spans = 0, reserved = 0;
  // The guard of the host; `guard_generation` counts them, and who restarts it wins by raising it.
  std::atomic<std::int64_t> guard_process{0};
  std::atomic<std::int64_t> guard_started_ticks{0};
  std::atomic<std::uint64_t> guard_generation{0};
  std::atomic<std::int64_t> guard_tick_ns{0};  // its last look
  // Written once by the first rank that knows of other hosts; then the guard listens: write_guard_network().
  // `network_known`: 0 no, 1 somebody writes it, 2 yes.
  std::array<std::byte, Secret::size> secret{};
  std::array<char, 64> listen_address{};
  std::atomic<std::uint32_t> network_known{0};
  std::atomic<std::uint32_t> guard_port{0};  // where guards of other hosts reach it; 0: nowhere
  // Written once, when the run directory is known; then the guard writes there. `known`: 0 no, 1 somebody
  // writes it, 2 yes.
  std::array<char, 1024> run_directory{};
  std::atomic<std::uint32_t> run_directory_known{0};
  // The guard's, for the `fault` events of those that go on.
  BoardNotices verdicts{};     // who hangs
  BoardNotices lost_spares{};  // who was one and died, which nobody else notices
};

struct BoardSize {
  std::uint32_t slots = 1;
  std::uint32_t ring_spans = 512;
};

class Board {
 public:
  // Whoever comes first makes it; others find it, whatever size they ask for.
  static Result<std::unique_ptr<Board>> open_or_create(Env& env, const std::string& name,
                                                       const BoardSize& size);
  // Error: it is not there, or closed, or no board of this program.
  static Result<std::unique_ptr<Board>> open(Env& env, const std::string& name);
  // One that nobody has open, and nobody else can open meanwhile. Error also: somebody has.
  static Result<std::unique_ptr<Board>> open_alone(Env& env, const std::string& name);

  BoardHeader& header();
  std::uint32_t slots() const { return size_.slots; }
  BoardSlot& slot(std::uint32_t index);
  std::span<Span> ring(std::uint32_t index);  // of the slot
  // A free slot, or one whose process has ended, taken for this process; its index. Error: all are taken, or
  // the board is closed, or the system does not tell when this process started.
  Result<std::uint32_t> take_slot(Env& env, int launched_rank);

  bool closed();
  // Ends the board unless a process of its slots lives, the caller apart; whether it did. Then its name is
  // removed.
  bool close(Env& env, const std::string& name);

 private:
  Board(std::unique_ptr<SharedMemory> memory, const BoardSize& size)
      : memory_(std::move(memory)), size_(size) {}
  static Result<std::unique_ptr<Board>> create(Env& env, const std::string& name, const BoardSize& size);
  static Result<std::unique_ptr<Board>> open_and_hold(Env& env, const std::string& name,
                                                      SharedMemory::Hold how);
  std::unique_ptr<SharedMemory> memory_;
  BoardSize size_;  // as it fits the memory; what the header says now is not asked again
};

// What was left in this host's shared memory when everybody was killed at once: boards that nobody has open,
// and their tables of hosts. How many boards there were.
std::size_t remove_dead_boards(Env& env);

// What one slot says, as plain values of one moment.
struct SlotView {
  std::int64_t process = 0, started_ticks = 0;
  std::int64_t parent = 0, parent_started_ticks = 0;
  ProcessIdentity identity() const { return {.id = process, .started_ticks = started_ticks}; }
  int launched_rank = -1;
  Phase phase = Phase::start_up;
  bool left = false;
  std::uint64_t step = 0, epoch = 0;
  std::uint32_t members = 0;
  WorkKind kind = WorkKind::usual;
  std::int64_t begun_ns = 0, deadline_ns = 0, ceiling_ns = 0, median_ns = 0, heartbeat_ns = 0;
  std::int64_t wait_begun_ns = 0;
  int wait_peer = -1;
  std::uint32_t wait_number = 0;
  std::string wait_operation = {};
  std::int64_t storage_begun_ns = 0;
  std::string storage_what = {};
  std::int64_t drain_begun_ns = 0;
  std::uint64_t drain_step = 0, drain_bytes = 0;
  std::uint64_t moved_bytes = 0, device_ops = 0, spans_opened = 0;
  std::int64_t life_ns = 0;
};
SlotView read_slot(const BoardSlot& slot);
// A time or duration within 36 years of 0: of what a damaged board or a foreign message says the nearest one,
// so that differences and sums of a few of them are numbers, too.
inline std::int64_t plausible_time(std::int64_t time) {
  constexpr std::int64_t largest = std::int64_t{1} << 60;
  return std::clamp(time, -largest, largest);
}
// Whether the process of the slot lives, and is the one that took it. False also where the system does not
// tell, and of a process of another user, who cannot have taken it.
bool lives(Env& env, const SlotView& slot);

// Words of a text, cut to what fits with a 0 at its end.
void store_text(std::span<std::atomic<std::uint64_t>> words, std::string_view text);
std::string load_text(std::span<const std::atomic<std::uint64_t>> words);

struct Notice {
  std::uint64_t number = 0;  // they count from 1
  int rank = -1;             // launched; -1: all of the host
  std::string sentence = {};
};
void write_notice(BoardNotices& notices, int rank, std::string_view sentence);
// Those behind number `after`, oldest first; of more than are kept the newest.
std::vector<Notice> read_notices(const BoardNotices& notices, std::uint64_t after = 0);

// Tells the guard that there are other hosts: what it shares with their guards, and where it listens
// (Network::listen). The first one stays.
struct GuardNetworkFacts {
  Secret secret;
  std::string listen_address = {};
};
void write_guard_network(BoardHeader& header, const GuardNetworkFacts& facts);
std::optional<GuardNetworkFacts> read_guard_network(const BoardHeader& header);  // nothing: not known

void write_run_directory(BoardHeader& header, const std::string& directory);  // the first one stays
std::string read_run_directory(const BoardHeader& header);                    // empty: not known

}  // namespace holdfast::inline watchdog
