// Which hosts answer, asked the way mpirun starts its daemons: by ssh, or what PRTE_MCA_plm_ssh_agent names;
// in a Slurm job by srun.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/os/env.h"
#include "watchdog/restart_policy.h"

namespace holdfast::inline launch {

// The command that reaches a host, whose name (may_be_host_name) and words for its shell stand behind it: the
// first of PRTE_MCA_plm_ssh_agent's, else ssh. Words, not a line for a shell.
std::vector<std::string> host_agent(Env& env);

// Says when a host was first heard of.
struct HeardHost {
  std::int64_t after_ms = -1;  // since all were asked: its first word, or its end; -1: nothing so far
  bool is_suspected = false;   // LaunchHost::is_suspected
};
// Returns how long a host may be silent: no limit until half of those that are not suspected have been heard
// of, then some times what the slowest of these took, and a least time, which is short for one that is
// suspected. What they do after their first word takes as long as it takes. Pure.
std::int64_t silence_limit_ms(std::span<const HeardHost> asked, bool is_suspected);

// Runs a program there, on all hosts at once, with the words that stand for it and its arguments, each as it
// is: they are quoted for the shell that gets them there. Returns the exit codes. None: it could not be
// reached, or did not answer while `left_ms`, which is asked again and again, was more than 0, or was silent
// for too long. Of this host, where nothing is run: 0.
std::vector<std::optional<int>> ask_hosts(Env& env, const std::vector<LaunchHost>& hosts,
                                          const std::vector<std::string>& words,
                                          const std::function<std::int64_t()>& left_ms);

}  // namespace holdfast::inline launch
