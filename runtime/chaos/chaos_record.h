// Records of a chaos campaign: the faults that it injects into a run, and the results.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/chaos/chaos_plan.h"
#include "runtime/chaos/host_fault.h"
#include "runtime/chaos/work_loss.h"
#include "runtime/launch/launch_options.h"
#include "runtime/os/mounts.h"
#include "runtime/run/incident_log.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/run_directory.h"

namespace holdfast::inline chaos {

// Setup that all runs of a campaign have in common.
struct ChaosSetup {
  std::string program;                      // holdfast
  std::string config;                       // RUN.toml
  std::vector<std::string> overrides = {};  // for all runs, without those that a plan sets
  std::uint64_t steps = 0;
  std::int64_t lanes = 1, tensor_lanes = 1;    // number in the run, whatever the layout
  std::string digest;                          // digest of the undisturbed run
  std::int64_t limit_ms = 600'000;             // per run, all its launches together
  std::int64_t hang_ms = 0;                    // extra time for each rank that hangs in it
  std::vector<std::string> host_options = {};  // options of `holdfast launch` that name the hosts
  std::vector<LaunchHost> hosts = {};          // hosts that these name now
  std::vector<std::string> other_hosts = {};   // those of `hosts` that may be lost
  HostCommands host_commands = {};
  Mounts* mounts = nullptr;      // for runs whose disk is full for a while
  std::uint64_t disk_bytes = 0;  // size of such a disk, enough for a run
};

// A fault that was injected or happened by itself; faults that were armed and never reached are not recorded.
struct ChaosInjected {
  ChaosFault fault = ChaosFault::kill;
  std::int64_t time_us = 0;  // wall clock
  std::string what = {};     // "kill -9 of rank 2"
  int rank = -1;             // rank that was hit; -1: not one rank
  std::string host = {};     // other host that was hit; empty: this one
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

// Meaning of the end of a launch for its run.
enum class LaunchEnd : std::uint8_t {
  done,
  ended_truthfully,  // it gave up and says why, and another launch goes on
  wrong,             // no fault of the campaign explains it
};
// Classifies the end of a launch. `disk_was_full`: for a while in this launch. Exit code 76 is explained by
// its text, and 5 by that of a disk that was full. Any other end is wrong whatever was done to the run: so is
// code 3, because what fitted before a fault must fit after it.
LaunchEnd end_of(const ChaosLaunch& launch, bool disk_was_full);

using HostRanks = std::map<std::string, int>;  // number of ranks, by the name of the host

struct ChaosRun {
  ChaosPlan plan;
  std::string directory = {};
  std::vector<ChaosInjected> injected = {};  // in the order of time
  std::vector<ChaosLaunch> launches = {};
  std::int64_t ended_truthfully = 0;           // launches that ended so, followed by another one
  std::vector<ReportedVerdict> verdicts = {};  // verdicts of the guards, in the order of time
  IncidentLog ledger = {};
  std::vector<WorkLoss> losses = {};   // in the order of time
  std::vector<HostRanks> starts = {};  // starts that said where their ranks are, in the order of time
  bool ran_out_of_time = false;
  // Problem of the run; empty: it ended with the bits of the undisturbed run, left nothing behind, and left
  // no host out.
  std::string wrong = {};
  std::int64_t duration_ms = 0;
};

}  // namespace holdfast::inline chaos
