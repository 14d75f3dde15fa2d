// RankWatch: a rank's own side of the watchdog. It writes on the board of its host what the rank is at, keeps
// the flight record there, learns how long each phase takes, and makes sure that there is a guard.
//
// The cost is a few stores; nothing here waits or allocates after the start, except to start another guard
// when the previous one is gone. Where there is no board (no shared memory, watchdog.guard = false) there is
// no RankWatch either, so its users hold a pointer that may be null.
//
// Threads: the training thread, except for moved(), runs_plugin(), drains() and drained().
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/peer_waits.h"
#include "runtime/core/wait_listener.h"
#include "runtime/os/env.h"
#include "watchdog/board.h"
#include "watchdog/deadlines.h"

namespace holdfast::watchdog {

class RankWatch final : public WaitListener {
 public:
  struct Setup {
    std::string board;        // board_name()
    std::uint32_t slots = 1;  // ranks of this host, and room for joiners
    int launched_rank = 0;
    std::vector<std::string> guard = {};  // command line of a guard for this board; empty: none is started
    DeadlineLimits limits = {};
  };
  // Takes a slot and starts the guard if there is none.
  static Result<std::unique_ptr<RankWatch>> begin(Env& env, const Setup& setup);
  ~RankWatch() override;  // leaves the slot, as a rank that ends by itself

  void run_directory(const std::string& directory);
  struct MembershipEpoch {
    std::uint64_t number = 0;   // membership epoch
    double work_times = 1.0;    // Deadlines::rescale()
    std::uint32_t members = 0;  // ranks, spares too; 0: not known
  };
  // Begins a membership epoch. The first step and the first batch of an evaluation after it are of their own
  // kind (WorkKind::first).
  void begin_epoch(const MembershipEpoch& epoch);

  // Enters a phase. Ends the phase before, whose duration is learned; the deadline of the new one counts from
  // now.
  void enter(Phase phase, std::uint64_t step);
  // Enters a phase with fixed limits, whatever was learned: at most `deadline_ms` without a sign of life, and
  // at most `ceiling_ms` (`deadline_ms`, where that is longer) with signs of life.
  void enter(Phase phase, std::uint64_t step, std::int64_t deadline_ms, std::int64_t ceiling_ms = 0);
  // Marks the present phase as one beside a save that is under way or begins, which makes it of another kind.
  void beside_save();
  // Marks a part of the phase as done (a batch of an evaluation): its duration is learned, and the deadline
  // starts anew.
  void mark();

  void on_wait(std::int64_t since_ns, std::int64_t now_ns, const Awaited& awaited) override;
  void on_resume() override;
  // Counts, by peer, for how long this rank waits, from now on or no longer. Of more than peers_counted those are
  // forgotten that have been waited for least.
  void count_waits(bool counts) { counts_waits_ = counts; }
  // Returns what was counted since the last call.
  PeerWaits take_waits();

  // Says that the rank reads or locks something on a file system, in a call that may block, until
  // storage_answers().
  void waits_for_storage(const char* what);
  // Lets the limits of the phase begin anew, and learns nothing: others took the time, or storage answers in parts.
  void renew_limits();
  void storage_answers();
  // Counts a sign of life, from any thread: bytes that were copied, loaded or saved.
  void moved(std::uint64_t bytes) { slot().moved_bytes.fetch_add(bytes, std::memory_order_relaxed); }
  std::atomic<std::uint64_t>& device_ops() { return slot().device_ops; }  // for Device::count_ops_in

  // Says which kernel of a plug-in the device runs (line_of()), from any thread; empty: none any more.
  void runs_plugin(std::string_view kernel);
  // Returns the faults of such kernels with which those of these ranks ended that were on this host. Where one ran a kernel at
  // its end, the guard is waited for, for `patience_ms`: it sees how a process ends.
  KernelFaults kernel_faults_of(std::span<const int> launched_ranks, std::int64_t patience_ms);

  void drains(std::uint64_t step, std::uint64_t bytes);  // any thread
  void drained();

  std::span<Span> ring();                    // for SpanRecorder::record_into
  std::atomic<std::uint64_t>& ring_count();  // number of spans opened there

  // Returns the guard's reports of ranks that hang that were not taken yet, one after another; empty if there are none. "rank 2
  // (host a) hangs: ..."
  std::string take_hang();
  // Returns the spares that have died and were not taken yet: "rank 3 (host a), rank 4 (host a)".
  std::string take_lost_spares();
  // Says, for the ranks of this host that go on, why this rank ends itself: a word that they know.
  void leaves(std::string_view why);
  // Returns the newest of what others have said so that was not taken yet; empty if there is none.
  std::string take_why_left();
  Board& board();

 private:
  RankWatch(Env& env, Setup setup, std::unique_ptr<Board> board, std::uint32_t slot);
  struct FixedLimits {
    std::int64_t deadline_ns = 0, ceiling_ns = 0;  // 0: learned
  };
  struct PresentPhase {
    Phase phase = Phase::start_up;
    WorkKind kind = WorkKind::usual;
    std::int64_t begun_ns = 0;
    FixedLimits fixed = {};
  };
  void begin_phase(Phase phase, std::uint64_t step, const FixedLimits& fixed, std::int64_t now_ns);
  WorkKind next_kind(Phase phase);
  void put_deadline();
  static std::string take(const BoardNotices& notices, std::uint64_t& taken, std::string_view between);
  std::int64_t deadline() const;
  void learn(std::int64_t now_ns);
  void keep_guard(std::int64_t now_ns);
  void start_guard(std::int64_t now_ns);
  void count_wait(int peer, std::int64_t waited_ns);
  void signal_guard(const ProcessIdentity& guard, int number);
  BoardSlot& slot() { return board_->slot(slot_); }

  Env* env_;
  Setup setup_;
  std::unique_ptr<Board> board_;
  std::uint32_t slot_;
  Deadlines deadlines_;
  PresentPhase present_ = {};
  std::array<bool, static_cast<std::size_t>(Phase::count)> begun_in_epoch_{};
  // Begin of the wait that is on the board; 0: none.
  std::int64_t wait_since_ns_ = 0;
  Awaited awaited_ = {};
  static constexpr std::size_t peers_counted = 64;
  bool counts_waits_ = false;
  std::int64_t counted_ns_ = 0;  // up to which the wait was counted
  std::array<PeerWait, peers_counted> waits_ = {};
  std::uint64_t hangs_taken_ = 0, spares_taken_ = 0, left_taken_ = 0;
  // Times of the next and the last look at the guard, and its state at the last look.
  std::int64_t next_look_ns_ = 0;
  std::int64_t restart_gap_ns_, guard_started_ns_ = 0;
  std::uint64_t seen_generation_ = 0;
};

}  // namespace holdfast::watchdog
