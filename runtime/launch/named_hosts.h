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

// Reads a Slurm allocation: the nodes of a job, from the variables that Slurm sets for it, and the command
// that runs a program on one of them.

// Expand a list of nodes as Slurm writes it ("n[01-03,7],m2"), and a list of counts, one for each node
// ("4(x2),1"). Pure. ExitCode::config with a clause for a message if the list cannot be read, or would be
// longer than any cluster.
Result<std::vector<std::string>> nodes_of_slurm_list(const std::string& list);
Result<std::vector<int>> counts_of_slurm_list(const std::string& list);

// Returns whether this process belongs to a Slurm job.
bool in_slurm_allocation(Env& env);

// Returns the nodes of the job, each with as many slots as it has tasks. Empty outside of a job.
// ExitCode::config with a sentence if the variables are missing or cannot be read.
Result<std::vector<LaunchHost>> allocated_hosts(Env& env);

// Returns whether mpirun starts its daemons with srun: in a job, unless PRTE_MCA_plm names another launcher.
bool mpirun_uses_srun(Env& env);

// Returns the line that runs a program on one node of the job beside whatever runs there; the words are
// passed on unchanged.
std::vector<std::string> srun_line(Env& env, const std::string& node, const std::vector<std::string>& words);

// Make srun exit with 255 when it does not reach the node, or at least with 128 or more, which no command of
// the launcher returns.
inline constexpr const char* srun_error_variable = "SLURM_EXIT_ERROR";
inline constexpr const char* srun_error_code = "255";
inline constexpr int min_srun_error = 128;

}  // namespace holdfast::launch
