// Records of a chaos campaign: the faults that it injects into a run, and the results.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/launch/launch_options.h"
#include "runtime/os/mounts.h"
#include "runtime/run/event.h"
#include "runtime/run/incident_log.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/run_directory.h"
#include "tools/chaos/chaos_plan.h"
#include "tools/chaos/host_fault.h"
#include "tools/chaos/work_loss.h"

namespace holdfast::chaos {

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
  std::vector<WorkLoss> losses = {};   // in the order of time
  std::vector<HostRanks> starts = {};  // starts that said where their ranks are, in the order of time
  bool ran_out_of_time = false;
  bool same_bits = false;  // it ended with the bits of the undisturbed run, or of its twin
  // Number fault that explains other bits, because no check could see it; empty: there is none.
  std::string excuse = {};
  // Problem of the run; empty: it ended with the bits of the undisturbed run or has an excuse, left nothing
  // behind, left no host out, and blamed no rank for nothing.
  std::string wrong = {};
  std::int64_t duration_ms = 0;
};

}  // namespace holdfast::chaos
