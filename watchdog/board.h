// Board: the shared memory of one host in which each of its ranks says what it is at. The guard of the host
// and tools that inspect a run can read it, also when a rank hangs or is dead.
//
//   HF_TRY(std::unique_ptr<Board> board, Board::open_or_create(env, name, BoardSize{.slots = 8}));
//   BoardSlot& slot = board->slot(rank_on_host);
//
// One process writes a slot, the guard reads it: every word that both touch is an atomic of its own, so a
// reader sees a mixture of two moments at worst, never half a word. Words that must be seen together are
// written between two increments of `version` (odd: being written; read_slot() retries).
//
// The guard removes the board when no rank is left: it closes the board first. A rank that starts later finds
// a closed board, which counts for nothing, and makes another one. So it does with one that is not finished after 5 s,
// unless its maker lives: a process that makes or has a board holds its memory (SharedMemory::hold()).
//
// Layout: a BoardHeader, `slots` x BoardSlot, then `slots` rings of `ring_spans` x Span (span_recorder.h),
// the flight record of each rank. Fields have a fixed width; the header holds the version of the layout, and
// opening a board of another version is an error.
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

#include "runtime/core/kernel_fault.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/process_identity.h"
#include "runtime/os/secret.h"
#include "runtime/os/span_recorder.h"
#include "watchdog/deadlines.h"

namespace holdfast::watchdog {

// Returns the name of the shared memory of one start of a run on one host. `start`: what all ranks of the
// start know before MPI (runtime/rank/watch.h).
std::string board_name(const std::string& start);

inline constexpr std::size_t board_text_bytes = 256;

struct alignas(64) BoardSlot {
  // Identity of the rank that holds the slot, set once, by the rank that takes it. `process` is 0 for a free
  // slot, and the negated process id while that process is taking the slot.
  std::atomic<std::int64_t> process{0};
  std::atomic<std::int64_t> started_ticks{0};  // ProcessFacts: unique together with the process id
  std::atomic<std::int64_t> parent{0};         // parent process: a daemon of MPI on hosts other than mpirun's
  std::atomic<std::int64_t> parent_started_ticks{0};
  std::atomic<std::int32_t> launched_rank{-1};
  std::atomic<std::uint32_t> version{0};
  // Current phase of the rank.
  std::atomic<std::uint32_t> phase{0};
  std::atomic<std::uint32_t> left{0};  // 1: it is about to end by itself, whatever its exit code
  std::atomic<std::uint64_t> step{0};
  std::atomic<std::uint64_t> epoch{0};        // membership epoch
  std::atomic<std::uint32_t> members{0};      // ranks in the membership, spares too; 0: not known
  std::atomic<std::int64_t> begun_ns{0};      // begin of the phase, or of its last mark(); monotonic clock
  std::atomic<std::uint32_t> kind{0};         // WorkKind
  std::atomic<std::int64_t> deadline_ns{0};   // longest time without a sign of life; 0: no limit
  std::atomic<std::int64_t> ceiling_ns{0};    // longest duration with signs of life; 0: as the deadline
  std::atomic<std::int64_t> median_ns{0};     // usual duration; 0: not known
  std::atomic<std::int64_t> floor_ns{0};      // minimum deadline of all phases; 0: not known
  std::atomic<std::int64_t> heartbeat_ns{0};  // last sign of life of the training thread
  // Current wait for another rank. `wait_begun_ns` is 0 while the rank does not wait. A rank that waits
  // writes heartbeat_ns at every poll, so a rank that is marked as waiting and has no recent heartbeat is the
  // one that hangs.
  std::atomic<std::int64_t> wait_begun_ns{0};
  std::atomic<std::int32_t> wait_peer{-1};    // launched rank; -1: not known, or any rank
  std::atomic<std::uint32_t> wait_number{0};  // number of the collective or exchange in its communicator
  std::array<std::atomic<std::uint64_t>, 4> wait_operation{};  // name, at most 31 bytes and a 0
  // Current wait for a file system: begin of the wait (0: none), and what the rank reads or locks. Nothing
  // more is written during the wait, because the call blocks.
  std::atomic<std::int64_t> storage_begun_ns{0};
  std::array<std::atomic<std::uint64_t>, 4> storage_what{};
  // Work of the rank's background threads (any): a save that drains. 0: none.
  std::atomic<std::int64_t> drain_begun_ns{0};
  std::atomic<std::uint64_t> drain_step{0};
  std::atomic<std::uint64_t> drain_bytes{0};
  // Signs of life (any): bytes that the rank copied, loaded or saved, and ops that its device has done. Only
  // their growth has a meaning.
  std::atomic<std::uint64_t> moved_bytes{0};
  std::atomic<std::uint64_t> device_ops{0};
  // Time at which the guard last saw a sign of life: one of the counters above, or one that it finds in /proc
  // (signs_of_life.h). The guard writes this word.
  std::atomic<std::int64_t> life_ns{0};
  // Kernel of a plug-in that the rank's device runs (any), by line_of(); empty: none.
  std::array<std::atomic<std::uint64_t>, board_text_bytes / 8> plugin{};
  // KernelEnd of a process that ended while there was one. The guard writes this word.
  std::atomic<std::uint32_t> kernel_end{0};
  // The flight ring. Each span that begins is a sign of life, too.
  std::atomic<std::uint64_t> spans_opened{0};
  std::atomic<std::uint32_t> ring_spans{0};
};

// Sentences about ranks, written by the guard for the ranks; only the newest ones are kept. See
// write_notice() and read_notices().
struct BoardNotices {
  static constexpr std::uint64_t kept = 8;
  struct Entry {
    std::atomic<std::int32_t> rank{-1};
    std::array<std::atomic<std::uint64_t>, board_text_bytes / 8> sentence{};
    std::atomic<std::uint64_t> number{0};  // 0: being written, or never written
  };
  std::atomic<std::uint64_t> count{0};  // number of all notices so far
  std::array<Entry, kept> newest{};     // notice n is at index n % kept
};

struct BoardHeader {
  std::atomic<std::uint64_t> magic{0};
  std::uint32_t layout = 0, slots = 0, ring_spans = 0, reserved = 0;
  // Guard of the host. `guard_generation` counts the guards; of several processes that want to restart it,
  // the one that raises this number starts it.
  std::atomic<std::int64_t> guard_process{0};
  std::atomic<std::int64_t> guard_started_ticks{0};
  std::atomic<std::uint64_t> guard_generation{0};
  std::atomic<std::int64_t> guard_tick_ns{0};  // its last look
  // Network facts, written once by the first rank that knows of other hosts; then the guard listens:
  // write_guard_network(). `network_known`: 0 no, 1 being written, 2 yes.
  std::array<std::byte, Secret::size> secret{};
  std::array<char, 64> listen_address{};
  std::atomic<std::uint32_t> network_known{0};
  std::atomic<std::uint32_t> guard_port{0};  // port of the guard for guards of other hosts; 0: none
  // Run directory, written once when it is known; then the guard writes there. `run_directory_known`: 0 no, 1
  // being written, 2 yes.
  std::array<char, 1024> run_directory{};
  std::atomic<std::uint32_t> run_directory_known{0};
  // Notices of the guard, for the `fault` events of the ranks that go on.
  BoardNotices hangs{};        // ranks that hang
  BoardNotices lost_spares{};  // spares that died, which no other rank notices
  // Why ranks of this host have left, by themselves. Of two that write at once one may be lost.
  BoardNotices left{};
};

struct BoardSize {
  std::uint32_t slots = 1;
  std::uint32_t ring_spans = 512;
};

class Board {
 public:
  // Opens the board, and makes it if this process is the first. An existing board keeps its size, whatever
  // `size` asks for.
  static Result<std::unique_ptr<Board>> open_or_create(Env& env, const std::string& name,
                                                       const BoardSize& size);
  // Opens an existing board. Error: it is not there, or closed, or not a board of this program.
  static Result<std::unique_ptr<Board>> open(Env& env, const std::string& name);
  // Opens a board that no process has open, and keeps others from opening it meanwhile. Error, beside those
  // of open(): a process has it open.
  static Result<std::unique_ptr<Board>> open_alone(Env& env, const std::string& name);

  BoardHeader& header();
  std::uint32_t slots() const { return size_.slots; }
  BoardSlot& slot(std::uint32_t index);
  std::span<Span> ring(std::uint32_t index);  // flight ring of the slot
  // Takes a free slot, or one whose process has ended, for this process; returns its index. Error: all are
  // taken, or the board is closed, or the system does not report when this process started.
  Result<std::uint32_t> take_slot(Env& env, int launched_rank);

  bool closed();
  // Closes the board and removes its name, unless a process of its slots other than the caller lives; returns
  // whether it did.
  bool close(Env& env, const std::string& name);

 private:
  Board(std::unique_ptr<SharedMemory> memory, const BoardSize& size)
      : memory_(std::move(memory)), size_(size) {}
  static Result<std::unique_ptr<Board>> create(Env& env, const std::string& name, const BoardSize& size);
  static Result<std::unique_ptr<Board>> open_and_hold(Env& env, const std::string& name,
                                                      SharedMemory::Hold how);
  std::unique_ptr<SharedMemory> memory_;
  BoardSize size_;  // checked once against the memory; the header is not read for it again
};

// Removes what is left in this host's shared memory when all processes were killed at once: boards that no
// process has open, and their tables of hosts. Returns the number of boards removed.
std::size_t remove_dead_boards(Env& env);

// Plain values of one slot, all of one moment.
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
  std::int64_t begun_ns = 0, deadline_ns = 0, ceiling_ns = 0, median_ns = 0, floor_ns = 0, heartbeat_ns = 0;
  std::int64_t wait_begun_ns = 0;
  int wait_peer = -1;
  std::uint32_t wait_number = 0;
  std::string wait_operation = {};
  std::int64_t storage_begun_ns = 0;
  std::string storage_what = {};
  KernelName plugin = {};  // empty: it runs none
  KernelEnd kernel_end = KernelEnd::unknown;
  std::int64_t drain_begun_ns = 0;
  std::uint64_t drain_step = 0, drain_bytes = 0;
  std::uint64_t moved_bytes = 0, device_ops = 0, spans_opened = 0;
  std::int64_t life_ns = 0;

  // Returns the newest step that the rank has completed.
  std::uint64_t completed_step() const { return phase == Phase::step && step > 0 ? step - 1 : step; }
};
SlotView read_slot(const BoardSlot& slot);
// Returns the fault of the kernel that the slot has.
KernelFault fault_of(const SlotView& slot, KernelEnd how, const std::string& host);
// Clamps a time or duration to within 36 years of 0. A damaged board or a foreign message can hold any
// number; after this, differences and sums of a few of them cannot overflow.
inline std::int64_t plausible_time(std::int64_t time) {
  constexpr std::int64_t largest = std::int64_t{1} << 60;
  return std::clamp(time, -largest, largest);
}
// Returns whether the process of the slot lives and is the one that took it. False also where the system does
// not tell, and for a process of another user, which cannot have taken it.
bool lives(Env& env, const SlotView& slot);

// Stores a text in words, cut to what fits with a 0 at its end.
void store_text(std::span<std::atomic<std::uint64_t>> words, std::string_view text);
std::string load_text(std::span<const std::atomic<std::uint64_t>> words);

struct Notice {
  std::uint64_t number = 0;  // begins at 1
  int rank = -1;             // launched rank; -1: all ranks of the host
  std::string sentence = {};
};
void write_notice(BoardNotices& notices, int rank, std::string_view sentence);
// Returns the notices after number `after`, oldest first. If there were more than are kept, returns the
// newest.
std::vector<Notice> read_notices(const BoardNotices& notices, std::uint64_t after = 0);

// Tells the guard that there are other hosts: the secret that it shares with their guards, and the address
// that it listens at (Network::listen). Only the first call has an effect.
struct GuardNetworkFacts {
  Secret secret;
  std::string listen_address = {};
};
void write_guard_network(BoardHeader& header, const GuardNetworkFacts& facts);
std::optional<GuardNetworkFacts> read_guard_network(const BoardHeader& header);  // std::nullopt: not known

void write_run_directory(BoardHeader& header, const std::string& directory);  // only the first call counts
std::string read_run_directory(const BoardHeader& header);                    // empty: not known

}  // namespace holdfast::watchdog
