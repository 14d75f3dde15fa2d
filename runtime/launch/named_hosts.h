// Finds the hosts that the options of `holdfast launch` name: a list, a file, or a command that prints one;
// without any of them, the hosts of the Slurm job.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/launch/launch_options.h"
#include "runtime/launch/restart_policy.h"
#include "runtime/os/env.h"

namespace holdfast::launch {

// Time limit of --host-command. The launcher does nothing else meanwhile, so the limit is far shorter than
// the usual notice.
inline constexpr std::int64_t host_command_limit_ms = 5'000;

// MissingHosts is what the command is told of the run, by HOLDFAST_HOSTS_MISSING, HOLDFAST_RANKS_MISSING and
// HOLDFAST_WHY_MISSING: one that rents machines rents as many.
struct MissingHosts {
  int hosts = 0;         // of those that it named last
  int ranks = 0;         // that the run would have with them
  std::string why = {};  // "n2 is unreachable: it does not answer; n3 is unfit: ..."
};

// Returns the hosts; reads the file, or runs the command, each time. Empty: this host. ExitCode::config with
// a sentence if the file or the command yields none, or a Slurm job has no room for the ranks.
Result<std::vector<LaunchHost>> named_hosts(Env& env, const LaunchOptions& options,
                                            const MissingHosts& missing = {});

// Return whether the hosts can be others the next time, and where they come from, for messages.
bool hosts_may_change(const LaunchOptions& options);
std::string source_of_hosts(const LaunchOptions& options);

}  // namespace holdfast::launch
