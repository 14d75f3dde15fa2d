#include "runtime/launch/named_hosts.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/core/text.h"
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

namespace {

constexpr std::size_t max_nodes = 1 << 17;
constexpr int max_tasks = 1 << 20;  // tasks of a node

// Returns -1 if the text is no whole number of at most `most`.
std::int64_t number_of(std::string_view text, std::int64_t most) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && number >= 0 && number <= most ? number : -1;
}

// Splits the list at the commas outside brackets.
std::vector<std::string_view> entries_of(std::string_view list) {
  std::vector<std::string_view> entries;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') ++depth;
    if (i < list.size() && list[i] == ']') --depth;
    if (i < list.size() && (list[i] != ',' || depth > 0)) continue;
    entries.push_back(list.substr(begin, i - begin));
    begin = i + 1;
  }
  return entries;
}

Error unreadable(std::string_view what) {
  return fail(ExitCode::config, "cannot be read at \"{}\"", what);
}

// Appends the numbers of "01-03" or "7", as wide as the first is written.
Result<void> append_range(std::string_view range, std::vector<std::string>& numbers) {
  constexpr std::int64_t largest = 999'999'999;
  const std::size_t dash = range.find('-');
  const std::string_view first = range.substr(0, dash);
  const std::int64_t from = number_of(first, largest);
  const std::int64_t to = dash == std::string_view::npos ? from : number_of(range.substr(dash + 1), largest);
  if (from < 0 || to < from || to - from >= static_cast<std::int64_t>(max_nodes)) return unreadable(range);
  for (std::int64_t number = from; number <= to; ++number)
    numbers.push_back(fmt::format("{:0{}}", number, first.size()));
  return {};
}

// Expands the first bracket and what follows, which may have more of them: "rack[0-1]n[0-3]".
Result<std::vector<std::string>> expand(std::string_view entry) {
  const std::size_t open = entry.find('[');
  const std::size_t close = entry.find(']');
  if (entry.empty() || (open == std::string_view::npos) != (close == std::string_view::npos) || close < open)
    return unreadable(entry);
  if (open == std::string_view::npos) return std::vector<std::string>{std::string(entry)};
  std::vector<std::string> numbers;
  for (const std::string_view range : entries_of(entry.substr(open + 1, close - open - 1)))
    HF_TRY_VOID(append_range(range, numbers));
  std::vector<std::string> ends = {""};
  if (close + 1 < entry.size()) {
    HF_TRY(ends, expand(entry.substr(close + 1)));
  }
  if (numbers.size() * ends.size() > max_nodes) return unreadable(entry);
  std::vector<std::string> names;
  for (const std::string& number : numbers) {
    for (const std::string& end : ends) names.push_back(std::string(entry.substr(0, open)) + number + end);
  }
  return names;
}

Error not_understood(const char* variable, const std::string& value, const std::string& why,
                     const char* example) {
  return fail(
      ExitCode::config,
      "launch: {} = \"{}\" {}; Slurm writes it as in \"{}\". Start holdfast launch in the job itself, or "
      "name the hosts with --host",
      variable, value, why, example);
}

// Returns how many tasks each node of the job has if the variable for that describes a step: the number that
// was asked for, else the number that there are processors for. None if that is not known either.
std::optional<std::vector<int>> counts_of_step(Env& env, std::size_t nodes) {
  const std::int64_t asked = number_of(env.variable("SLURM_NTASKS_PER_NODE"), max_tasks);
  if (asked > 0) return std::vector<int>(nodes, static_cast<int>(asked));
  const std::int64_t per_task =
      std::max<std::int64_t>(1, number_of(env.variable("SLURM_CPUS_PER_TASK"), max_tasks));
  const Result<std::vector<int>> processors = counts_of_slurm_list(env.variable("SLURM_JOB_CPUS_PER_NODE"));
  if (!processors.ok() || processors->size() != nodes) return std::nullopt;
  std::vector<int> counts;
  for (const int each : *processors)
    counts.push_back(static_cast<int>(std::max<std::int64_t>(1, each / per_task)));
  return counts;
}

}  // namespace

Result<std::vector<std::string>> nodes_of_slurm_list(const std::string& list) {
  std::vector<std::string> nodes;
  for (const std::string_view entry : entries_of(list)) {
    HF_TRY(const std::vector<std::string> names, expand(entry));
    if (nodes.size() + names.size() > max_nodes) return unreadable(entry);
    nodes.insert(nodes.end(), names.begin(), names.end());
  }
  return nodes;
}

Result<std::vector<int>> counts_of_slurm_list(const std::string& list) {
  std::vector<int> counts;
  for (const std::string_view entry : entries_of(list)) {
    const std::size_t open = entry.find("(x");
    const std::int64_t count = number_of(entry.substr(0, open), max_tasks);
    std::int64_t times = 1;
    if (open != std::string_view::npos) {
      times =
          entry.ends_with(')') ? number_of(entry.substr(open + 2, entry.size() - open - 3), max_nodes) : -1;
    }
    if (count < 1 || times < 1 || counts.size() + static_cast<std::size_t>(times) > max_nodes)
      return unreadable(entry);
    counts.insert(counts.end(), static_cast<std::size_t>(times), static_cast<int>(count));
  }
  return counts;
}

bool in_slurm_allocation(Env& env) {
  return !env.variable("SLURM_JOB_ID").empty();
}

Result<std::vector<LaunchHost>> allocated_hosts(Env& env) {
  if (!in_slurm_allocation(env)) return std::vector<LaunchHost>();
  constexpr const char* nodes_variable = "SLURM_JOB_NODELIST";
  constexpr const char* tasks_variable = "SLURM_TASKS_PER_NODE";
  const std::string list = env.variable(nodes_variable);
  const Result<std::vector<std::string>> nodes = nodes_of_slurm_list(list);
  if (!nodes.ok()) return not_understood(nodes_variable, list, nodes.error().message, "n[01-03,7],m2");
  const std::string text = env.variable(tasks_variable);
  Result<std::vector<int>> counts = counts_of_slurm_list(text);
  if (!counts.ok() || counts->size() != nodes->size()) {
    const std::optional<std::vector<int>> others = counts_of_step(env, nodes->size());
    if (!others.has_value()) {
      const std::string why =
          !counts.ok() ? counts.error().message
                       : fmt::format("is of {} node{}, and {} = \"{}\" of {}", counts->size(),
                                     counts->size() == 1 ? "" : "s", nodes_variable, list, nodes->size());
      return not_understood(tasks_variable, text, why, "4(x2),1");
    }
    counts = *others;
  }
  std::vector<LaunchHost> hosts;
  for (std::size_t i = 0; i < nodes->size(); ++i)
    hosts.push_back({.name = (*nodes)[i], .slots = (*counts)[i]});
  return hosts;
}

bool mpirun_uses_srun(Env& env) {
  const std::string way = env.variable("PRTE_MCA_plm");
  return in_slurm_allocation(env) && (way.empty() || way == "slurm");
}

// Returns the line. Without --overlap a step waits for the end of the steps that run.
std::vector<std::string> srun_line(Env& env, const std::string& node, const std::vector<std::string>& words) {
  return {"srun",
          fmt::format("--jobid={}", env.variable("SLURM_JOB_ID")),
          "--overlap",
          "--mpi=none",
          "--input=none",
          "--export=ALL",
          "--nodes=1",
          "--ntasks=1",
          fmt::format("--nodelist={}", node),
          "sh",
          "-c",
          words_for_shell(words)};
}

}  // namespace holdfast::launch
