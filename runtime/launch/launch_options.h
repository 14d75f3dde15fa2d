// Parses the command line of `holdfast launch`, and the hosts that it names.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/launch/restart_policy.h"
#include "runtime/os/env.h"

namespace holdfast::launch {

struct LaunchOptions {
  int ranks = 0;      // -np N; or MAX of -np MIN:MAX, as far as the hosts have slots
  int min_ranks = 0;  // MIN; 0: N was given
  // Source of the hosts, at most one of the three; none: this host, or those that Slurm allocated.
  std::string hostfile = {};
  std::string host_command = {};    // command that prints the text of a hostfile
  std::string hosts = {};           // LIST of --host
  std::string tune = {};            // empty: the one in configs/mpi that fits the number of hosts
  std::int64_t notice_ms = 30'000;  // from the request to stop to the end of every process
  // Time that a start waits for hosts while too few are left.
  std::int64_t wait_for_hosts_ms = 1'800'000;
  bool dry_run = false;
  bool faults = false;     // the ranks are meant to make the faults of HOLDFAST_FAULTS
  bool preflight = false;  // hosts are tried before the first start
  bool drill = false;      // a short run loses a rank and a host on purpose before the first start
  // Hosts that were not fit then, each with a sentence: they are used while others will not do.
  std::map<std::string, std::string> unfit_hosts = {};
  std::string config = {};                  // RUN.toml
  std::vector<std::string> overrides = {};  // --section.key=value, for `holdfast train` as they are
};

// Parses the options; ExitCode::config with a sentence for a word that is no option of launch, or that has no
// value or a wrong one.
Result<LaunchOptions> parse_launch_options(const std::vector<std::string>& words);

// Checks that faults are meant: a variable left from a test ends ranks and changes numbers. Error: config.
Result<void> check_faults_meant(Env& env, const LaunchOptions& options);

// Return the hosts of a hostfile's text ("name slots=4", '#' begins a comment) and of a LIST ("a:4,b:4", each
// entry without a number is one slot), each name once, in their order. Pure.
std::vector<LaunchHost> hosts_of_file(const std::string& text);
std::vector<LaunchHost> hosts_of_list(const std::string& list);
// Check that names can be those of hosts (may_be_host_name), because they are passed to commands that reach
// hosts, and to shells there; ExitCode::config when one of `source` cannot. Pure.
Result<void> check_host_name(const std::string& name, const std::string& source);
Result<void> check_host_names(const std::vector<LaunchHost>& hosts, const std::string& source);
// Returns the LIST of the first hosts that answer, as many as the ranks need: the loss of a host without
// ranks would end the start, too. Each host gets slots for whole groups of `group` ranks if it has as many,
// and what the ranks need if its number of slots is not known.
std::string list_of_hosts_left(const std::vector<LaunchHost>& hosts, int ranks, int group = 1);
// Returns how many of the ranks each host gets with that LIST.
std::map<std::string, int> ranks_by_host(const std::vector<LaunchHost>& hosts, int ranks, int group = 1);

}  // namespace holdfast::launch
