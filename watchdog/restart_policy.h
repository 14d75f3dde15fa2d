// What follows when a start of a run has ended: the end of it all, or another start, how soon, and on which
// hosts. Pure: from what is known to a decision; runtime/launch carries it out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::inline watchdog {

// How one start ended, by what its ranks left behind. What mpirun exited with is no part of it: it is 0 when
// all ranks were killed, and not 0 after a good recovery.
struct StartEnd {
  enum class Record : std::uint8_t {
    none,      // it wrote no status, or none that says how it ended
    finished,  // all steps are done
    saved,     // on request, or because its time was over
    failed,    // with `code`
  };
  Record record = Record::none;
  ExitCode code =
      ExitCode::communication;    // of a failed start, be it by its record or by its ranks' own words
  std::uint64_t step_before = 0;  // the newest step that the run had reached when it began
  std::uint64_t step = 0;         // and when it ended
  // What happened, for a person: "rank 1 (host a) died".
  std::string fault = {};
  // Equal texts: the same fault. Empty: nothing that the run itself could have brought about.
  std::string kind = {};
};

struct RestartLimits {
  int without_progress = 5;  // so many starts in a row that reach no new step are enough
  int same_fault = 3;        // that end at the same step, or one beside it, in the same way
  std::int64_t first_delay_ms = 1'000;
  std::int64_t longest_delay_ms = 60'000;
};

struct Verdict {
  bool restart = false;
  ExitCode code = ExitCode::done;  // to end with
  std::int64_t delay_ms = 0;       // before the restart
  std::string sentence = {};       // why
};

// `starts`: all of this launch, oldest first, at least one. `stop_requested`: somebody asked the run to save
// and stop.
//   - a start that finished or saved is the end, and so is an error that every other start would meet, too
//   - a fault after new steps: again at once
//   - else after a delay that doubles, until one of the limits says that it is pointless
Verdict after_start(std::span<const StartEnd> starts, bool stop_requested, const RestartLimits& limits);

struct LaunchHost {
  std::string name;
  int slots = 0;  // 0: not said
  bool answers = true;
  // Its ranks did not say how they ended, and those of others ended because they had lost them.
  bool is_suspected = false;
};

// Says what a run wants of its hosts.
struct RanksWanted {
  int ranks = 1;         // spares among them
  int per_copy = 1;      // ranks of a copy of the model
  int min_copies = 1;    // a start with fewer is none
  bool at_most = false;  // as many as the hosts have slots for: fewer are no loss that is made up for
  int spares = 0;        // ranks that wait for a coordinate: the first to be gone without
  // The hosts had slots for all ranks when the run was launched, so those that are left get no more ranks
  // than slots, whatever hosts are named by now.
  bool within_slots = false;
};

// Returns how many ranks the hosts that answer have room for: their slots; without slots, or where the ranks
// wanted are more than the slots of all hosts, their share of the ranks wanted.
int room_on_hosts_left(std::span<const LaunchHost> hosts, const RanksWanted& wanted);

// Returns how many ranks the next start has on the hosts that answer: as many as wanted while there is room
// for them, else whole copies of the model, and spares for what room they leave only where no copy is lost.
// None: fewer than the least copies would be left.
std::optional<int> ranks_on_hosts_left(std::span<const LaunchHost> hosts, const RanksWanted& wanted);

}  // namespace holdfast::inline watchdog
