#include "runtime/launch/named_hosts.h"

#include <fmt/core.h>

#include "runtime/launch/slurm.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::launch {
namespace {

constexpr std::size_t max_output_bytes = 1 << 20;  // some 40,000 hosts

// Returns the output of the command without its stderr, no line of which is a host; a user who runs the
// command by hand sees that.
Result<std::string> output_of_host_command(Env& env, const std::string& command,
                                           const MissingHosts& missing) {
  HF_TRY(const CommandEnd end,
         env.run_command({.line = "{ " + command + "\n} 2>/dev/null",
                          .variables = {{"HOLDFAST_HOSTS_MISSING", std::to_string(missing.hosts)},
                                        {"HOLDFAST_RANKS_MISSING", std::to_string(missing.ranks)},
                                        {"HOLDFAST_WHY_MISSING", missing.why}},
                          .timeout_ms = host_command_limit_ms,
                          .output_bytes = max_output_bytes}));
  if (end.succeeded() && end.output.size() < max_output_bytes) return end.output;
  std::string how = "printed more than 1 MiB";
  if (end.how == CommandEnd::How::timed_out)
    how = fmt::format("took longer than {} s", host_command_limit_ms / 1000);
  if (end.how == CommandEnd::How::killed) how = fmt::format("was killed by signal {}", end.code);
  if (end.how == CommandEnd::How::exited && end.code != 0)
    how = fmt::format("ended with exit code {}", end.code);
  return fail(ExitCode::config, "launch: the command of --host-command {}; run it by hand to see why: {}",
              how, command);
}

// Returns the hosts of the Slurm job. More ranks than the job asked for would share processors and memory
// that Slurm accounts for, so they are refused.
Result<std::vector<LaunchHost>> hosts_of_allocation(Env& env, const LaunchOptions& options) {
  HF_TRY(std::vector<LaunchHost> hosts, allocated_hosts(env));
  std::int64_t room = 0;
  for (const LaunchHost& host : hosts) room += host.slots;
  const int least = options.min_ranks > 0 ? options.min_ranks : options.ranks;
  if (hosts.empty() || least <= room) return hosts;
  return fail(
      ExitCode::config,
      "launch: -np asks for {}{} ranks, and Slurm job {} has room for {}: {} task{} on {} node{}, {}; give "
      "sbatch or salloc more by --nodes and --ntasks-per-node, or lower -np",
      options.min_ranks > 0 ? "at least " : "", least, env.variable("SLURM_JOB_ID"), room, room,
      room == 1 ? "" : "s", hosts.size(), hosts.size() == 1 ? "" : "s", env.variable("SLURM_JOB_NODELIST"));
}

}  // namespace

Result<std::vector<LaunchHost>> named_hosts(Env& env, const LaunchOptions& options,
                                            const MissingHosts& missing) {
  std::vector<LaunchHost> hosts;
  if (!options.hosts.empty()) {
    hosts = hosts_of_list(options.hosts);
    HF_TRY_VOID(check_host_names(hosts, "launch: --host"));
    return hosts;
  }
  if (!options.host_command.empty()) {
    HF_TRY(const std::string text, output_of_host_command(env, options.host_command, missing));
    hosts = hosts_of_file(text);
  } else if (!options.hostfile.empty()) {
    const Result<std::string> text = read_text_within(env, options.hostfile, text_limits::hostfile);
    if (!text.ok())
      return fail_because(text.error(), ExitCode::config, "launch: the hostfile: {}", text.error().message);
    hosts = hosts_of_file(*text);
  } else {
    HF_TRY(hosts, hosts_of_allocation(env, options));
    HF_TRY_VOID(check_host_names(hosts, "launch: SLURM_JOB_NODELIST"));
    return hosts;
  }
  if (hosts.empty()) {
    return fail(ExitCode::config, "launch: {} names no host; a line is \"name slots=4\"",
                source_of_hosts(options));
  }
  HF_TRY_VOID(check_host_names(hosts, "launch: " + source_of_hosts(options)));
  return hosts;
}

bool hosts_may_change(const LaunchOptions& options) {
  return !options.hostfile.empty() || !options.host_command.empty();
}

std::string source_of_hosts(const LaunchOptions& options) {
  return options.host_command.empty() ? options.hostfile : "the command of --host-command";
}

}  // namespace holdfast::launch
