// `holdfast chaos` makes an undisturbed run, then runs with faults, one for each seed, and reports the
// results.
//
// Its directory has:
//   undisturbed/, .digest   the undisturbed run and its digest from `holdfast digest`; used again
//   twin/                   for a while: an undisturbed run with the spoiled sample of a seed
//   seed-N/, seed-N.log     a run that went wrong, or all with `keep`
//   chaos.json, .html       written anew after every run
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/launch/restart_policy.h"
#include "runtime/os/env.h"
#include "runtime/os/mounts.h"
#include "tools/chaos/chaos_plan.h"
#include "tools/chaos/chaos_report.h"
#include "tools/chaos/chaos_run.h"

namespace holdfast::chaos {

struct CampaignOptions {
  std::string config;                       // RUN.toml
  std::vector<std::string> overrides = {};  // --section.key=value
  std::string directory = {};
  std::string json = {};  // empty: chaos.json in the directory
  std::uint64_t first_seed = 1;
  std::int64_t runs = 10;                 // at most; 0: as many as the time allows
  double minutes = 0.0;                   // no run is started later; 0: no limit
  std::int64_t kills = 0;                 // number that ends the campaign; 0: no limit
  int ranks = 4;                          // maximum for a run
  std::vector<ChaosLayout> layouts = {};  // only these, with any number of ranks; empty: all
  std::int64_t limit_ms = 0;              // per run; 0: a minute plus ten times the undisturbed run
  std::vector<ChaosFault> faults = {};    // faults to choose from; empty: all but those of numbers
  int faults_max = 4;                     // maximum for a run
  std::int64_t every_ms = 0;              // between two faults of a run; 0: at steps that the seed draws
  std::string hostfile = {}, hosts = {};  // of `holdfast launch`; at most one
  HostCommands host_commands = {};
  bool kills_only = false;
  bool as_configured = false;  // no run gets a key of checkpoint.* that the config does not have
  bool keep = false;
  bool only_plans = false;   // print them, and run nothing
  std::string program = {};  // holdfast: "holdfast 0.1.0 (...)" is for the report
  std::string version = {};
};

// Facts that the campaign found on this machine.
struct ChaosMachine {
  std::string no_small_disk = {};      // reason why no file system of limited size can be mounted; empty: it
                                       // can
  std::string no_stalling_disk = {};   // reason why none that can stall can be mounted; empty: it can
  std::string no_slow_files = {};      // reason why no file's calls can be slow; empty: they can
  std::vector<LaunchHost> hosts = {};  // hosts that the options name
  std::vector<std::string> other_hosts = {};  // all of `hosts` except this one
  bool auto_is_gpu = false;  // device = "auto" takes a GPU of this host; false where nothing depends on it
};

// Returns the hosts that the options name now: a hostfile may be written anew while the campaign goes on.
Result<std::vector<LaunchHost>> hosts_of(Env& env, const CampaignOptions& options);
// Returns the names of all hosts except this one.
std::vector<std::string> others_of(Env& env, const std::vector<LaunchHost>& hosts);

// Asks for mounts of its own, and looks for a GPU, where the options and the config may need them.
Result<ChaosMachine> look_around(Env& env, Mounts& mounts, const CampaignOptions& options,
                                 const Config& resolved);

// Faults and layouts that can be drawn for this config on this machine, and those that cannot, with the
// reason. Pure. ExitCode::config: no layout of so many ranks can run it.
struct ChaosChoice {
  ChaosLimits limits;
  std::map<ChaosFault, std::string> skipped;
};
Result<ChaosChoice> choose_limits(const Config& resolved, const CampaignOptions& options,
                                  const ChaosMachine& machine);
Error nothing_to_draw(const ChaosChoice& choice);
// Returns the number of samples of one step of the whole run.
std::int64_t samples_of_step(const Config& config);

// Runs the campaign and prints progress. Returns true if every run ended with the right bits. `resolved`: the
// config with everything that follows from it and from the data. Where permitted, this process has mounts of
// its own from then on.
Result<bool> run_campaign(Env& env, Mounts& mounts, const CampaignOptions& options, Config resolved);

}  // namespace holdfast::chaos
