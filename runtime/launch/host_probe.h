// Which hosts answer, asked the way mpirun starts its daemons: by ssh, or what PRTE_MCA_plm_ssh_agent names;
// in a Slurm job by srun.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/env.h"
#include "watchdog/restart_policy.h"

namespace holdfast {

// The command that reaches a host, whose name and words for its shell stand behind it: the first of
// PRTE_MCA_plm_ssh_agent's, else ssh.
std::vector<std::string> host_agent(Env& env);

// Runs the words there (for its shell), on all hosts at once; the exit codes. None: it could not be reached,
// or did not answer while `left_ms`, which is asked again and again, was more than 0, or had not said a word
// long after half of the others had. Of this host, where nothing is run: 0.
std::vector<std::optional<int>> ask_hosts(Env& env, const std::vector<LaunchHost>& hosts,
                                          const std::vector<std::string>& words,
                                          const std::function<std::int64_t()>& left_ms);

}  // namespace holdfast
