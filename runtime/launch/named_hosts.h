// The hosts that the options of `holdfast launch` name: a list, a file, or a command that prints one;
// without any of them those of the Slurm job.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/launch/launch_options.h"
#include "runtime/os/env.h"
#include "watchdog/restart_policy.h"

namespace holdfast::inline launch {

// Limits --host-command: the launcher does nothing else meanwhile, so it is far less than the usual notice.
inline constexpr std::int64_t host_command_limit_ms = 5'000;

// Reads the file, or runs the command, each time. Empty: this host. ExitCode::config with a sentence where
// the file or the command does not give any, or a Slurm job has no room for the ranks.
Result<std::vector<LaunchHost>> named_hosts(Env& env, const LaunchOptions& options);

// Tell whether they can be others the next time, and where they come from, for people.
bool hosts_may_change(const LaunchOptions& options);
std::string source_of_hosts(const LaunchOptions& options);

}  // namespace holdfast::inline launch
