// Reads a Slurm allocation: the nodes of a job, from the variables that Slurm sets for it, and the command
// that runs a program on one of them.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/launch/restart_policy.h"
#include "runtime/os/env.h"

namespace holdfast::launch {

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
