// Records of a chaos campaign: what it does to a run, and what came of it.
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
  std::vector<std::string> overrides = {};  // of all runs, without those that a plan sets
  std::uint64_t steps = 0;
  std::int64_t lanes = 1, tensor_lanes = 1;    // of the run, whatever the layout
  std::string digest;                          // of the undisturbed run
  std::int64_t limit_ms = 600'000;             // of one run, all its launches together
  std::int64_t hang_ms = 0;                    // more for each rank that hangs in it
  std::vector<std::string> host_options = {};  // of `holdfast launch`: which hosts
  std::vector<LaunchHost> hosts = {};          // that these name at the moment
  std::vector<std::string> other_hosts = {};   // of them, those that may be lost
  HostCommands host_commands = {};
  Mounts* mounts = nullptr;      // for runs whose disk is full for a while
  std::uint64_t disk_bytes = 0;  // of which so much is enough for a run
};

// That was made, or has happened by itself: what was armed and never reached is not here.
struct ChaosInjected {
  ChaosFault fault = ChaosFault::kill;
  std::int64_t time_us = 0;  // wall clock
  std::string what = {};     // "kill -9 of rank 2"
  int rank = -1;             // whom it met; -1: not one rank
  std::string host = {};     // which one of the others it met; empty: this one
  // Whether a rank was recovering from an earlier death then, as the watchdog's board said. The log knows
  // less: which rank noticed a death first is forgotten when that one is killed, too.
  bool during_recovery = false;
};

struct ChaosLaunch {
  std::int64_t begun_us = 0, ended_us = 0;
  bool killed = false;  // by the campaign
  int exit_code = 0;
  std::string last_words = {};  // the end of what it printed
};

// Says what a launch that has ended means for its run.
enum class LaunchEnd : std::uint8_t {
  done,
  ended_truthfully,  // it gave up and says why, and another launch goes on
  wrong,             // no fault of the campaign explains it
};
// `disk_was_full`: for a while in this launch. Exit code 76 explains itself by words, and 5 by those of a
// disk that was full. Any other end is wrong whatever was done to the run: so is code 3, because what fitted
// before a fault must fit after it.
LaunchEnd end_of(const ChaosLaunch& launch, bool disk_was_full);

using HostRanks = std::map<std::string, int>;  // how many, by the name of the host

struct ChaosRun {
  ChaosPlan plan;
  std::string directory = {};
  std::vector<ChaosInjected> injected = {};  // in the order of time
  std::vector<ChaosLaunch> launches = {};
  std::int64_t ended_truthfully = 0;       // of the launches, and another one followed
  std::vector<ToldVerdict> verdicts = {};  // of the guards, in the order of time
  IncidentLog ledger = {};
  std::vector<WorkLoss> losses = {};   // in the order of time
  std::vector<HostRanks> starts = {};  // that said where their ranks are, in the order of time
  bool ran_out_of_time = false;
  // Empty: it ended with the bits of the undisturbed run, left nothing behind, and left no host out.
  std::string wrong = {};
  std::int64_t duration_ms = 0;
};

}  // namespace holdfast::inline chaos
