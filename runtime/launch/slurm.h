// A Slurm allocation: the nodes that a job has, read from the variables that Slurm sets for it, and how a
// command is brought to one of them.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "watchdog/restart_policy.h"

namespace holdfast::inline launch {

// Expands a list of nodes as Slurm writes it ("n[01-03,7],m2"), and a list of counts, one for each node
// ("4(x2),1"). Pure. ExitCode::config with the words for a sentence where it cannot be read, or would be
// longer than any cluster.
Result<std::vector<std::string>> nodes_of_slurm_list(const std::string& list);
Result<std::vector<int>> counts_of_slurm_list(const std::string& list);

// Returns whether this process belongs to a Slurm job.
bool in_slurm_allocation(Env& env);

// Returns the nodes of the job, each with as many slots as it has tasks. Empty outside of a job.
// ExitCode::config with a sentence where the variables are missing or cannot be read.
Result<std::vector<LaunchHost>> allocated_hosts(Env& env);

// Returns whether mpirun starts its daemons with srun: inside of a job, unless PRTE_MCA_plm names another
// way.
bool mpirun_uses_srun(Env& env);

// Returns the line that runs a program on one node of the job, with words that are taken as they are, beside
// whatever runs there.
std::vector<std::string> srun_line(Env& env, const std::string& node, const std::vector<std::string>& words);

// Makes srun exit with 255 when it does not reach the node, at the least with 128 or more, which no command
// of the launcher does.
inline constexpr const char* srun_error_variable = "SLURM_EXIT_ERROR";
inline constexpr const char* srun_error_code = "255";
inline constexpr int min_srun_error = 128;

}  // namespace holdfast::inline launch
