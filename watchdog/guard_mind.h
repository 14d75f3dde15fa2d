// GuardMind: what the guard of a host decides. It is told what the slots of the board say, what became of
// their processes and what the guards of other hosts say, with a reading of the clocks in every tick, and
// answers with actions. Pure: guard.cc has the board, the processes and the clocks, and does what it is told.
//
//   mind.begin_tick(now_ns, wall_us);
//   for (each slot) mind.look_at(index, look);    // who came, who ended, who shows signs of life
//   act(mind.end_look(...));
//   act(mind.judge(evidence));                    // who hangs
//
// Facts that cost a read of /proc or a copy of all ranks of the run are given only where the mind asks for
// them (wants_...). Its rules:
//
//   - A tick that came late (the machine was suspended, the guard was stopped or had no processor) throws all
//     evidence away: everybody has his time anew. A death gives it to all that are not stopped, for they have
//     something to do that nobody foresaw.
//   - Who hangs is said by the detector. Nobody is ended before two ticks in a row have found the same, as a
//     single look may catch a slot between two moments; and nobody while one that was killed still lives.
//   - Ranks of other hosts are evidence, but their own guards end them.
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
#include "watchdog/signs_of_life.h"

namespace holdfast::inline watchdog {

struct GuardMindSettings {
  std::int64_t tick_ms = 25;
  std::int64_t late_ms = 1'000;            // a tick that took so long was no tick
  std::int64_t kill_patience_ms = 10'000;  // one that does not die of SIGKILL: level 2 (death_patience_ns)
  std::int64_t storage_quiet_ms = 10'000;  // ranks that wait for storage for so long are told of
};

// They are to be done in their order.
struct GuardAction {
  enum class Kind : std::uint8_t {
    take_flight,       // flight records of all ranks of the host; `text` is the reason
    tell_verdict,      // write `text` about `rank` on the board (BoardHeader::verdicts)
    tell_lost_spares,  // as that (BoardHeader::lost_spares)
    kill,              // SIGKILL to the process of `slot`
    say,               // print `text`
    report,            // tell the launcher `text` about `rank` (GuardSettings::on_verdict)
  };
  Kind kind = Kind::say;
  std::uint32_t slot = 0;
  int rank = -1;  // launched; -1: all of this host
  std::string text = {};
  bool operator==(const GuardAction&) const = default;
};
using GuardActions = std::vector<GuardAction>;

// A slot and whether its process has ended, which one that could not be found has.
struct SlotLook {
  SlotView slot = {};
  bool ended = false;
  std::optional<ProcessWork> work = {};  // wants_work()
};

// Facts of /proc about the process of a slot.
struct SlotProcess {
  char state = 'X';  // as ProcessFacts::state; 'X': it has ended
  std::uint64_t resident_bytes = 0;
};

struct HostEvidence {
  std::vector<SlotView> slots = {};
  std::vector<WatchedRank> distant = {};    // of hosts in reach: wants_distant()
  std::vector<SlotProcess> processes = {};  // by slot: wants_processes()
};

class GuardMind {
 public:
  GuardMind(const GuardMindSettings& settings, std::string host, std::size_t slots);

  // Both clocks, as those of a suspended machine differ in what they count. Returns whether the tick came
  // late, which the first one never does.
  bool begin_tick(std::int64_t now_ns, std::int64_t wall_us);

  // Whether the look at the slot that comes next should have SlotLook::work.
  bool wants_work(std::size_t index, const SlotView& slot) const;
  void look_at(std::size_t index, const SlotLook& look);
  // When the process of the slot was last seen to get anything done; 0: never.
  std::int64_t life_ns(std::size_t index) const { return watched_[index].life.last_ns(); }
  // After the look at the last slot. `has_peers`: guards of other hosts have to hear of those that ended.
  // `processes` are needed where wants_processes() says so.
  bool wants_processes() const { return count_ended() != ended_; }
  GuardActions end_look(std::span<const SlotProcess> processes, bool has_peers);
  // Spares that have died, on other hosts, too: nobody exchanges anything with one, so they would be missed
  // when they are needed.
  static GuardActions tell_lost_spares(std::span<const WatchedRank> spares);

  bool wants_distant(const HostEvidence& evidence) const;    // of evidence that has the slots,
  bool wants_processes(const HostEvidence& evidence) const;  // and the distant ones that were wanted
  GuardActions judge(const HostEvidence& evidence);

  bool nobody_left() const;
  // At once with the last rank, for the guard holds the output streams of the rank that started it, and
  // mpirun waits for their end. But a death is told to other hosts some times, as their ranks wait for the
  // proof.
  bool may_leave(std::int64_t now_ns) const;

 private:
  struct Watched {
    ProcessIdentity identity = {};  // nobody: there is none
    bool ended = false;
    std::int64_t evidence_since_ns = 0;  // evidence from before counts no more
    SignsOfLife life = {};
    std::int64_t killed_ns = 0;      // 0: it was not
    std::uint64_t killed_bytes = 0;  // what it had in memory then
    bool is_of(const SlotView& slot) const { return identity == slot.identity(); }
    bool lives() const { return identity.id != 0 && !ended; }
    bool is_dying() const { return lives() && killed_ns != 0; }
  };
  struct Suspicion {
    HangVerdict::Kind kind = HangVerdict::Kind::none;
    std::vector<std::size_t> indices = {};  // of the culprits
    bool operator==(const Suspicion&) const = default;
  };
  void begin_anew(std::span<const SlotProcess> processes);
  std::size_t count_ended() const;
  WatchedRank evidence_of(std::size_t index, const SlotView& slot) const;
  bool own_may_hang(const HostEvidence& evidence) const;
  bool distant_may_hang(const HostEvidence& evidence) const;
  bool is_distant_look_due() const;
  bool somebody_may_hang(const HostEvidence& evidence);
  bool resists(const Watched& watched) const;
  void look_at_killed(const HostEvidence& evidence, GuardActions& actions);
  void tell_of_storage(const HostEvidence& evidence, GuardActions& actions);
  void find_hang(const HostEvidence& evidence, GuardActions& actions);
  void end(std::span<const HangVerdict::Another> culprits, const HostEvidence& evidence,
           GuardActions& actions);
  void end_all(const std::string& sentence, const HostEvidence& evidence, GuardActions& actions);
  void kill(std::size_t index, const HostEvidence& evidence, GuardActions& actions);

  GuardMindSettings settings_;
  std::string host_;
  std::vector<Watched> watched_;  // by slot
  std::size_t ended_ = 0;         // of them, when evidence last began anew for that
  // Found in the look that goes on: "rank 1, rank 2", and spares that are lost.
  std::string dead_ = {};
  std::vector<WatchedRank> lost_spares_ = {};
  bool saw_death_ = false;
  Suspicion suspected_ = {};
  bool ticks_ = false;
  std::int64_t now_ns_ = 0, wall_us_ = 0;  // of this tick
  std::int64_t distant_look_ns_ = 0;
  bool distant_may_hang_ = false;
  std::int64_t anew_ns_ = 0;  // newest Watched::evidence_since_ns of all
  std::int64_t told_since_ns_ = std::numeric_limits<std::int64_t>::min() / 2;  // the newest death
  bool told_of_storage_ = false, said_that_one_stays_ = false;
};

}  // namespace holdfast::inline watchdog
