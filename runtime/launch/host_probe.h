// Asks which hosts answer, in the way that mpirun starts its daemons: by ssh, or what PRTE_MCA_plm_ssh_agent
// names; in a Slurm job by srun.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/launch/host_meeting.h"
#include "runtime/launch/restart_policy.h"
#include "runtime/os/env.h"

namespace holdfast::launch {

// Returns the command that reaches a host: the first of PRTE_MCA_plm_ssh_agent, else ssh. The name of the
// host (may_be_host_name) and the words for its shell come after it. The result is a list of words, not a
// line for a shell.
std::vector<std::string> host_agent(Env& env);

// HeardHost records when a host first sent anything.
struct HeardHost {
  std::int64_t after_ms = -1;  // from the question to its first output, or its end; -1: none yet
  bool is_suspected = false;   // LaunchHost::is_suspected
};
// Returns how long a host may be silent: 10 s until half of the hosts that are not suspected have
// been heard from; then a multiple of the time that the slowest of these took, and at least a minimum, which
// is short for a suspected host. The time that a host takes after its first output is not limited here. Pure.
std::int64_t silence_limit_ms(std::span<const HeardHost> asked, bool is_suspected);

// HostAnswer holds what a program on a host returned and printed.
struct HostAnswer {
  static constexpr std::size_t output_bytes = 16384;  // how much is kept of the end of what it printed

  // Exit code of the program; none if the host could not be reached, was silent for too long, or did not end in time.
  std::optional<int> code = {};
  // Holds what it printed on both streams, and what the command that reaches the host said. Other users may have
  // written it, so it is printable().
  std::string output = {};
  std::int64_t ended_after_ms = -1;  // from the question to its end; -1: it did not end, or was not asked

  // Returns its last line that is not blank, without the name of the program before its messages: with an exit code
  // other than 0 why it failed. Empty if it said no more than own_name().
  std::string last_line() const;
  // Returns what the host calls itself, by the line "here NAME" of HostCommand; empty if it has not said so.
  std::string own_name() const;
};

// Runs a program on all hosts at once. `words`: the program and its arguments, each quoted for the shell that
// gets it. Returns the answers, by host; that of this host is 0 and empty, unless `here_too` is true: then the program
// runs here, too. A host has no exit code if it did not answer while `left_ms`, which is called repeatedly, was above 0.
std::vector<HostAnswer> ask_hosts(Env& env, const std::vector<LaunchHost>& hosts,
                                  const std::vector<std::string>& words,
                                  const std::function<std::int64_t()>& left_ms, bool here_too = false);
// Does the same with words of its own for each host, by index. Where there is a meeting, it begins when the hosts that
// are still waited for have come to it (host_meeting.h), and early enough to end in time.
using WordsOfHost = std::function<std::vector<std::string>(std::size_t index)>;
std::vector<HostAnswer> ask_hosts(Env& env, const std::vector<LaunchHost>& hosts, const WordsOfHost& words,
                                  const std::function<std::int64_t()>& left_ms, bool here_too,
                                  HostMeeting* meeting);

}  // namespace holdfast::launch
