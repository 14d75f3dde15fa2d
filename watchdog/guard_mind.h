// GuardMind: decides what the guard of a host does. In every tick it gets a reading of the clocks, the slots
// of the board, the state of their processes and what the guards of other hosts say, and returns actions.
// Pure: guard.cc has the board, the processes and the clocks, and carries out the actions.
//
//   mind.begin_tick(now_ns, wall_us);
//   for (each slot) mind.look_at(index, look);    // ranks that came or ended, signs of life
//   act(mind.end_look(...));
//   act(mind.find_hangs(evidence));                    // ranks that hang
//
// Facts that cost a read of /proc or a copy of all ranks of the run are given only where the mind asks for
// them (wants_...). Its rules:
//
//   - A tick that came late (the machine was suspended, the guard was stopped or had no processor) discards
//     all evidence: every rank has its time anew. After a death this holds for all ranks that are not
//     stopped, as they have unforeseen work to do. Ticks that are late again and again (late_told, none of them
//     a minute after the one before) are told, with growing pauses: ranks that hang may never be found then.
//   - The detector says which ranks hang. A rank is ended only after two ticks in a row have found the same,
//     as a single look may catch a slot between two moments; and none while one that was killed still lives.
//   - Ranks of other hosts are evidence, but their own guards end them.
//   - Where this host has lost the link to others and is the one that has to leave for it, its ranks are ended: the
//     others go on in place.
//   - Where all wait for each other, and where a process does not die of SIGKILL (death_patience_ns), all
//     ranks of the host are ended: level 2, the launcher starts the run again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "watchdog/board.h"
#include "watchdog/detector.h"
#include "watchdog/growing_pauses.h"
#include "watchdog/signs_of_life.h"

namespace holdfast::watchdog {

struct GuardMindSettings {
  std::int64_t tick_ms = 25;
  std::int64_t late_ms = 1'000;            // a tick that took so long counts as late
  std::int64_t kill_patience_ms = 10'000;  // longest death by SIGKILL before level 2 (death_patience_ns)
  int late_told = 3;                       // number of late ticks that are told
  std::int64_t storage_quiet_ms = 10'000;  // longest silent wait for storage before it is reported
};

// Action for the guard. Actions are to be done in their order.
struct GuardAction {
  enum class Kind : std::uint8_t {
    take_flight,       // flight records of all ranks of the host; `text` is the reason
    post_hang,         // write `text` about `rank` on the board (BoardHeader::hangs)
    post_lost_spares,  // the same in BoardHeader::lost_spares
    kill,              // SIGKILL to the process of `slot`
    say,               // print `text`
    report,            // tell the launcher `text` about `rank` (GuardSettings::on_hang)
    report_end,        // tell it how the process of `slot`, of `rank`, ended (GuardSettings::on_end)
    judge_kernel,  // write on the board how the process of `slot` ended in its plug-in's kernel, and tell of a `fault`
  };
  Kind kind = Kind::say;
  std::uint32_t slot = 0;
  int rank = -1;  // launched; -1: all of this host
  std::string text = {};
  std::uint64_t step = 0;  // of report_end: the newest step that the rank had completed
  KernelFault fault = {};  // of judge_kernel; `how` may say that it was none
  bool operator==(const GuardAction&) const = default;
};
using GuardActions = std::vector<GuardAction>;

// Slot, and whether its process has ended; a process that could not be found counts as ended.
struct SlotLook {
  SlotView slot = {};
  bool ended = false;
  std::optional<ProcessEnd> end = {};    // when it is first seen as ended, where the system tells
  std::optional<ProcessWork> work = {};  // where wants_work()
};

// Facts of /proc about the process of a slot.
struct SlotProcess {
  char state = 'X';  // as ProcessFacts::state; 'X': it has ended
  std::uint64_t resident_bytes = 0;
};

struct HostEvidence {
  std::vector<SlotView> slots = {};
  std::vector<WatchedRank> distant = {};    // ranks of hosts in reach, where wants_distant()
  std::vector<SlotProcess> processes = {};  // by slot, where wants_processes()
  // Hosts to which the link is broken while other hosts hear them and this one, if it is this one that has to leave
  // (PeerHostMonitor::leaves_because_of).
  std::vector<std::string> leaves_because_of = {};
};

class GuardMind {
 public:
  GuardMind(const GuardMindSettings& settings, std::string host, std::size_t slots);

  // Begins a tick. Takes both clocks because they differ in whether they count the time of a suspended
  // machine. Returns whether the tick came late, which the first one never does.
  bool begin_tick(std::int64_t now_ns, std::int64_t wall_us);

  // Returns whether the next look at the slot should have SlotLook::work.
  bool wants_work(std::size_t index, const SlotView& slot) const;
  void look_at(std::size_t index, const SlotLook& look);
  // Returns when the process of the slot was last seen to get anything done; 0: never.
  std::int64_t life_ns(std::size_t index) const { return watched_[index].life.last_ns(); }
  // Ends a round, after the look at the last slot. `has_peers`: guards of other hosts have to hear of ranks
  // that ended. `processes` are needed where wants_processes() returns true.
  bool wants_processes() const { return count_ended() != ended_; }
  GuardActions end_look(std::span<const SlotProcess> processes, bool has_peers);
  // Tells the ranks which spares have died, those of other hosts, too: no rank exchanges anything with a
  // spare, so its death would be noticed only when it is needed.
  static GuardActions post_lost_spares(std::span<const WatchedRank> spares);

  bool wants_distant(const HostEvidence& evidence) const;    // `evidence` has the slots
  bool wants_processes(const HostEvidence& evidence) const;  // and the distant ranks, where wanted
  GuardActions find_hangs(const HostEvidence& evidence);

  bool nobody_left() const;
  // Returns whether the guard may leave: at once with the last rank, because the guard holds the output
  // streams of the rank that started it, and mpirun waits for their end. A death is first sent to other hosts
  // several times, as their ranks wait for the proof.
  bool may_leave(std::int64_t now_ns) const;

 private:
  struct Watched {
    ProcessIdentity identity = {};  // of its process; none: there is no process
    bool ended = false;
    std::int64_t evidence_since_ns = 0;  // earlier evidence does not count
    SignsOfLife life = {};
    std::int64_t killed_ns = 0;      // 0: not killed
    std::uint64_t killed_bytes = 0;  // memory that it had when it was killed
    bool is_of(const SlotView& slot) const { return identity == slot.identity(); }
    bool lives() const { return identity.id != 0 && !ended; }
    bool is_dying() const { return lives() && killed_ns != 0; }
  };
  struct Death {
    std::uint32_t slot = 0;
    int rank = -1;           // launched
    std::string cause = {};  // "signal 9 (SIGKILL)", and the kernel of a plug-in; empty: not known
    std::uint64_t step = 0;  // newest that it had completed
    KernelFault fault = {};  // of the kernel of a plug-in that it ran; one without a name: it ran none
  };
  // Ranks that were found dead in the present look, without those that this guard killed, and spares that
  // are lost.
  struct Dead {
    std::vector<Death> ranks = {};
    std::vector<WatchedRank> lost_spares = {};
    bool any = false;
  };
  // The last look at the ranks of other hosts.
  struct Distant {
    std::int64_t look_ns = 0;
    bool may_hang = false;
  };
  // Reported holds what was told already.
  struct Reported {
    std::int64_t since_ns = std::numeric_limits<std::int64_t>::min() / 2;  // the newest death
    bool storage = false, that_one_stays = false;
  };
  struct Suspicion {
    HangReport::Kind kind = HangReport::Kind::none;
    std::vector<std::size_t> indices = {};  // indices of the ranks that hang
    bool operator==(const Suspicion&) const = default;
  };
  // Ticks that came late, since some were told.
  struct LateTicks {
    int count = 0;
    std::int64_t since_ns = 0, last_ns = 0;
    std::int64_t longest_ms = 0;
  };
  void begin_anew(std::span<const SlotProcess> processes);
  void note_late(std::int64_t passed_ms);
  void report_late(GuardActions& actions);
  GuardActions report_deaths(std::span<const Death> deaths) const;
  std::size_t count_ended() const;
  WatchedRank evidence_of(std::size_t index, const SlotView& slot) const;
  bool own_may_hang(const HostEvidence& evidence) const;
  bool distant_may_hang(const HostEvidence& evidence) const;
  bool is_distant_look_due() const;
  bool somebody_may_hang(const HostEvidence& evidence);
  bool resists(const Watched& watched) const;
  void look_at_killed(const HostEvidence& evidence, GuardActions& actions);
  void report_storage(const HostEvidence& evidence, GuardActions& actions);
  void find_hang(const HostEvidence& evidence, GuardActions& actions);
  void end(std::span<const HangReport::Another> hung, const HostEvidence& evidence, GuardActions& actions);
  void leave(const HostEvidence& evidence, GuardActions& actions);
  void end_deadlock(const HangReport& report, const HostEvidence& evidence, GuardActions& actions);
  void end_all(const std::string& sentence, const HostEvidence& evidence, GuardActions& actions);
  void kill(std::size_t index, const HostEvidence& evidence, GuardActions& actions);

  GuardMindSettings settings_;
  std::string host_;
  std::vector<Watched> watched_;  // by slot
  std::size_t ended_ = 0;         // number of ended slots when evidence last began anew because of a death
  Dead dead_ = {};
  Suspicion suspected_ = {};
  bool ticks_ = false;
  LateTicks late_ = {};
  GrowingPauses late_pauses_ = GrowingPauses(30'000);  // of what is told about them
  std::int64_t now_ns_ = 0, wall_us_ = 0;              // clocks of this tick
  Distant distant_ = {};
  std::int64_t anew_ns_ = 0;  // newest Watched::evidence_since_ns of all
  Reported reported_ = {};
};

}  // namespace holdfast::watchdog
