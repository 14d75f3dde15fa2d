// Restart policy: decides after a start of a run has ended whether the launch ends or starts it again, how
// soon, and on which hosts. Pure: from what is known to a decision; runtime/launch carries it out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/core/kernel_fault.h"
#include "runtime/core/result.h"
#include "runtime/run/fault_cause.h"

namespace holdfast::launch {

// End of one start, as its ranks recorded it. The exit code of mpirun is not part of it: it is 0 when all
// ranks were killed, and not 0 after a good recovery.
struct StartEnd {
  enum class Record : std::uint8_t {
    none,      // no status, or none that says how the start ended
    finished,  // all steps are done
    saved,     // on request, or because its time was over
    failed,    // with `code`
  };
  Record record = Record::none;
  ExitCode code =
      ExitCode::communication;    // of a failed start, from its record or from its ranks' own reports
  std::uint64_t step_before = 0;  // newest step of the run when the start began
  std::uint64_t step = 0;         // newest step of the run when it ended
  // Description of the fault for a person: "rank 1 (host a) died".
  std::string fault = {};
  FaultCause cause = FaultCause::start_ended;
  KernelName kernel = {};  // of a plug-in, in which a rank ended at the end; empty: in none
  // Kind of the fault; equal texts mean the same fault. Empty: nothing that the run itself could have caused.
  std::string kind = {};
  Reach reach = Reach::run;  // of `code`: Reach::run ends the launch
  bool is_short = false;     // it trained for a short time only, or not at all
  std::int64_t begun_ns = 0, ended_ns = 0;
};

struct RestartLimits {
  int without_progress = 5;  // fewest starts in a row that reach no new step, before there are no more
  int same_fault = 3;        // fewest that end alike at the same step, or one beside it
  // Times for which such starts are made in any case, from the first of them.
  std::int64_t patience_ms = 0, same_fault_patience_ms = 0;
  std::int64_t first_delay_ms = 1'000;
  std::int64_t longest_delay_ms = 60'000;
};

struct RestartDecision {
  bool restart = false;
  ExitCode code = ExitCode::done;  // exit code of the launch
  std::int64_t delay_ms = 0;       // before the restart
  std::string sentence = {};       // reason
};

// Returns what follows. `starts`: all of this launch, oldest first, at least one. `stop_requested`: the run
// was asked to save and stop.
//   - a start that finished or saved is the end, and so is an error that every other start would meet, too:
//     one of the run's own inputs (Reach::run)
//   - a fault after new steps: again at once, unless short starts end in the same way again and again
//   - else after a delay that doubles, until one of the limits says that it is pointless
RestartDecision after_start(std::span<const StartEnd> starts, bool stop_requested,
                            const RestartLimits& limits);

struct LaunchHost {
  std::string name;
  int slots = 0;  // 0: not given
  bool answers = true;
  // True if its ranks did not say how they ended, and those of other hosts ended because they had lost them.
  bool is_suspected = false;
};

// Ranks that a run wants on its hosts.
struct RanksWanted {
  int ranks = 1;         // all ranks, spares included
  int per_copy = 1;      // ranks of a replica of the model
  int min_copies = 1;    // a start with fewer replicas is not made
  bool at_most = false;  // as many as the hosts have slots for: no loss when there are fewer
  int spares = 0;        // ranks that wait for a coordinate: given up first
  // True if the hosts had slots for all ranks when the run was launched: the hosts left then get no more
  // ranks than slots, whatever hosts are named by now.
  bool within_slots = false;
};

// Returns how many ranks the hosts that answer have room for: the number of their slots; without slots, or
// where the ranks wanted are more than the slots of all hosts, their share of the ranks wanted.
int room_on_hosts_left(std::span<const LaunchHost> hosts, const RanksWanted& wanted);

// Returns how many ranks the next start has on the hosts that answer: as many as wanted while there is room
// for them, else whole replicas of the model, and spares in the remaining room only where no replica is lost.
// std::nullopt: fewer than `min_copies` replicas would be left.
std::optional<int> ranks_on_hosts_left(std::span<const LaunchHost> hosts, const RanksWanted& wanted);

// Returns how many of the spares wanted the loss of the largest host takes; all, where the slots of hosts are not known.
int spares_for_a_host(std::span<const LaunchHost> hosts, const RanksWanted& wanted);

// Finds a layout for a start when the hosts that are left have no room for the configured degrees of
// parallelism. Pure.
//
// A run that is one copy of the model over several hosts has no copy to lose. Its next start computes the
// same slices and stages on fewer ranks instead: parallel.tensor and parallel.pipeline determine where a run
// executes, never a bit of it (DESIGN: "Lanes").
struct StartLayout {
  int ranks = 1;  // includes spares, if the run has any
  int pipeline = 1, tensor = 1;
  bool operator==(const StartLayout&) const = default;
};

// Returns the layout with the most ranks that the hosts left have room for, of those that `run` can have: at
// most its own degrees, at least `wanted.min_copies` copies of the model, every tensor group inside a host,
// and at least `min_ranks` ranks. Of several such layouts it is the one with the most ranks per copy, which
// needs the least memory of each rank; then the one with the larger tensor degree. `run`: the config with all
// that its first start resolved, at the wanted degrees. None if there is no such layout.
std::optional<StartLayout> narrower_layout(const Config& run, std::span<const LaunchHost> hosts,
                                           const RanksWanted& wanted, int min_ranks);

}  // namespace holdfast::launch
