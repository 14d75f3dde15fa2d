// Records of a chaos campaign: the faults that it injects into a run, and the results.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/launch/launch_options.h"
#include "runtime/os/mounts.h"
#include "runtime/run/event.h"
#include "runtime/run/incident_log.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/run_directory.h"
#include "tools/chaos/chaos_fault.h"
#include "tools/chaos/chaos_plan.h"
#include "tools/chaos/resource_watch.h"

namespace holdfast::chaos {

// The readers of the log of a run: WorkLossReader reads from an event log the work that a run lost each time that something in it died, and
// the cost that the run had promised as a maximum (its failure_cost event). Pure.

// Figures of a failure_cost event; none: all of the work is lost.
struct ReportedCost {
  std::optional<double> process_ms = {}, host_ms = {}, job_ms = {};
};

// A loss of ranks, however many died before the next step was made.
struct WorkLoss {
  std::int64_t noticed_us = 0, resumed_us = 0;  // resumed_us: the end of the first step after it
  std::uint64_t steps = 0;                      // number of steps that were computed again
  // Duration of a step before the loss: the median, so that a moment in which the machine was busy does not
  // count as work.
  double step_ms = 0.0;
  double unfinished_ms = 0.0;                 // part of the step that was under way; at most step_ms
  std::optional<ReportedCost> reported = {};  // newest figures in this start; none: not published yet

  double lost_ms() const { return static_cast<double>(steps) * step_ms + unfinished_ms; }
};

// Takes the events of a log in its order.
class WorkLossReader {
 public:
  void read(const Json& event);
  // Returns the losses after which a step was made.
  std::vector<WorkLoss> finish() && { return std::move(losses_); }

 private:
  void read_step(const StepEvent& event);
  void open(std::int64_t noticed_us, std::uint64_t step);
  void begin_epoch();
  double usual_step_ms();

  static constexpr std::size_t kept = 9;         // number of durations
  static constexpr std::int64_t slow_steps = 2;  // slow steps of an epoch: they touch memory for the first
                                                 // time
  std::vector<WorkLoss> losses_;
  std::optional<WorkLoss> open_;  // steps: not known yet
  std::uint64_t open_step_ = 0;   // newest step before the loss
  std::optional<ReportedCost> reported_;
  std::array<double, kept> durations_ms_ = {};
  std::int64_t steps_of_epoch_ = 0;
  double usual_ms_ = 0.0;
  std::uint64_t step_ = 0;
  std::int64_t step_us_ = 0, last_us_ = 0;
  bool begun_ = false, stopped_ = false;
};

// Setup that all runs of a campaign have in common.
struct ChaosSetup {
  std::string program;                      // holdfast
  std::string config;                       // RUN.toml
  std::vector<std::string> overrides = {};  // for all runs, without those that a plan sets
  std::uint64_t steps = 0;
  std::int64_t lanes = 1, tensor_lanes = 1;  // number in the run, whatever the layout
  std::uint64_t samples_of_step = 1;
  std::string digest;                             // digest of the undisturbed run
  std::vector<VerdictEvent> usual_verdicts = {};  // verdicts of the undisturbed run on its numbers
  std::int64_t limit_ms = 600'000;                // per run, all its launches together
  std::int64_t hang_ms = 0;                       // extra time for each rank that hangs in it
  std::vector<std::string> host_options = {};     // options of `holdfast launch` that name the hosts
  std::vector<LaunchHost> hosts = {};             // hosts that these name now
  std::vector<std::string> other_hosts = {};      // those of `hosts` that may be lost
  HostCommands host_commands = {};
  Mounts* mounts = nullptr;                  // for runs whose disk is full for a while
  std::uint64_t disk_bytes = 0;              // size of such a disk, enough for a run
  std::vector<std::string> data_files = {};  // of the training data; calls to them can be slow
};

// A fault that was injected or happened by itself; faults that were armed and never reached are not recorded.
struct ChaosInjected {
  ChaosFault fault = ChaosFault::kill;
  std::int64_t time_us = 0;  // wall clock
  std::string what = {};     // "kill -9 of rank 2"
  int rank = -1;             // rank that was hit; -1: not one rank
  std::string host = {};     // other host that was hit; empty: this one
  std::string peer = {};     // host that it was cut off from; empty: not a fault of a pair
  std::uint64_t step = 0;    // of a number fault: step in which the number became wrong
  // True if no step had been made since the state was made or loaded: what changes in it before the first
  // update is not seen, because digests go from one update to the next.
  bool before_first_update = false;
  // True if a rank was recovering from an earlier death then, as the watchdog's board said. The log knows
  // less: which rank noticed a death first is lost when that rank is killed, too.
  bool during_recovery = false;
};

struct ChaosLaunch {
  std::int64_t begun_us = 0, ended_us = 0;
  bool killed = false;  // by the campaign
  int exit_code = 0;
  std::string last_words = {};  // the end of its output
};

using HostRanks = std::map<std::string, int>;  // number of ranks, by the name of the host

struct ChaosRun {
  ChaosPlan plan;
  std::string directory = {};
  std::vector<ChaosInjected> injected = {};  // in the order of time
  std::vector<ChaosLaunch> launches = {};
  std::int64_t ended_truthfully = 0;        // launches that ended so, followed by another one
  std::vector<ReportedHang> verdicts = {};  // verdicts of the guards, in the order of time
  // Verdicts on numbers that the undisturbed run does not have, in the order of the log.
  std::vector<VerdictEvent> number_verdicts = {};
  IncidentLog ledger = {};
  std::vector<WorkLoss> losses = {};         // in the order of time
  std::vector<HostRanks> starts = {};        // starts that said where their ranks are, in the order of time
  std::vector<ResourceGrowth> growths = {};  // of its processes on this host that lived long enough
  std::uint64_t log_bytes = 0;
  bool ran_out_of_time = false;
  bool same_bits = false;  // it ended with the bits of the undisturbed run, or of its twin
  // Number fault that explains other bits, because no check could see it; empty: there is none.
  std::string excuse = {};
  // Problem of the run; empty: it ended with the bits of the undisturbed run or has an excuse, left nothing
  // behind, left no host out, and blamed no rank for nothing.
  std::string wrong = {};
  std::int64_t duration_ms = 0;
};

// StepClock says in which step of a run something happened, by the times of its events. Pure.
class StepClock {
 public:
  // Takes the events of a log in its order.
  void read(const Json& event);
  // Sets `step`, unless it is set, and `before_first_update` from the time of the fault. The step is the one
  // after the newest that was over; where the fault came with the end of a step it may be the next one.
  void place(ChaosInjected& injected) const;

 private:
  struct EndOfStep {
    std::int64_t time_us = 0;
    std::uint64_t step = 0;
  };
  std::vector<EndOfStep> ends_;
  std::vector<std::int64_t>
      loads_us_;  // from when on ranks have had another state than that of the last step
};

// Says whether a run went on without a host that nothing had happened to. Pure.

// Returns the ranks of each host from an event of a log, if it is a start that says so.
std::optional<HostRanks> ranks_of_start(const Json& event);

// Returns a sentence about the first start without a rank on such a host; empty: there is none. It checks
// only where each host has to have ranks: copies of one rank each, without spares, as many as the hosts of
// the run have slots, and hosts whose names are those that the first start has for them. Faults of ranks hit
// them on `here`, the host of the campaign.
std::string host_left_out(const ChaosRun& run, std::span<const LaunchHost> hosts, const std::string& here);

}  // namespace holdfast::chaos
