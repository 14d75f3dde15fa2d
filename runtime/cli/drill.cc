#include "runtime/cli/drill.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <map>
#include <memory>
#include <optional>

#include "runtime/cli/clean_run.h"
#include "runtime/config/loader.h"
#include "runtime/core/units.h"
#include "runtime/launch/named_hosts.h"
#include "runtime/os/console.h"
#include "runtime/os/paths.h"
#include "runtime/os/processes.h"
#include "runtime/report/incident.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_history.h"

namespace holdfast::cli {
namespace {

// Steps of a drill, and the one that a process does not begin. A start that is made again has fewer left than that.
constexpr int drill_steps = 8, lost_at = 5;
constexpr std::int64_t look_ms = 200;

// Returns a new name beside the run directory: hosts with directories of their own may keep parts of an older drill.
std::string new_path_of_drill(Env& env, const std::string& run_directory) {
  std::string path = run_directory;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return fmt::format("{}-drill-{}", path, new_run_id(env).substr(0, 8));
}

// Lets the drill save within its few steps, by the tiers that the run has.
std::vector<std::string> frequent_saves(const CheckpointConfig& config) {
  constexpr std::int64_t ram_steps = 1, disk_steps = 2;
  std::vector<std::string> words;
  if (config.ram_every_steps != 0) words.push_back(fmt::format("--checkpoint.ram_every_steps={}", ram_steps));
  if (config.every_steps != 0) words.push_back(fmt::format("--checkpoint.every_steps={}", disk_steps));
  return words;
}

std::string outcome_of_loss(const Incident& incident) {
  const bool in_place = incident.fault().level == FaultLevel::in_place;
  const std::string how =
      in_place ? fmt::format("{} of {} ranks went on in place", incident.ranks_after, incident.ranks_before)
               : fmt::format("another start was needed ({})", incident.faults.front().noticed);
  return fmt::format("{}; {} to notice, {} until it computed again, {} step{} again", how,
                     format_seconds(incident.cost.unnoticed_s), format_seconds(incident.cost.pause_s),
                     incident.fault().lost_steps, incident.fault().lost_steps == 1 ? "" : "s");
}

// Removes the run of a drill with its snapshots, and its output.
Result<void> remove_drill(Env& env, const RunPaths& paths, const std::string& output) {
  static_cast<void>(clean_run(env, paths.directory).ok());  // it may have left nothing
  HF_TRY_VOID(env.remove_tree(paths.directory));
  return env.remove_tree(output);
}

// Runs the drill until it ends. Returns how it ended; none: it was stopped.
Result<std::optional<ProcessEnd>> run_drill(Env& env, const DrillPlan& plan, const std::string& output,
                                            const std::function<bool()>& is_stopped) {
  HF_TRY(const std::unique_ptr<Process> process,
         env.processes().start({.arguments = plan.words,
                                .variables = {{"HOLDFAST_FAULTS", plan.faults}},
                                .output = output,
                                .own_session = true,
                                .die_with_parent = true}));
  while (!process->wait_ended(look_ms)) {
    if (!is_stopped()) continue;
    HF_TRY_VOID(process->signal(SIGTERM));
    while (!process->wait_ended(look_ms)) {
    }
    static_cast<void>(process->end());
    return std::optional<ProcessEnd>();
  }
  return process->end();
}

// Prints what the loss took. Returns whether the run noticed one.
Result<bool> tell_loss(Env& env, const DrillPlan& plan, const RunPaths& paths) {
  HF_TRY(const IncidentLog log, read_incident_log(env, paths));
  const auto mended = std::ranges::find_if(log.faults, [](const FaultEntry& fault) {
    return fault.level != FaultLevel::none && fault.pause_s() > 0.0;  // the last of several together
  });
  if (mended == log.faults.end()) return false;
  HF_TRY(const Incident incident,
         read_incident(env, paths, static_cast<std::size_t>(mended - log.faults.begin()) + 1));
  print_message("drill: {} lost: {}", plan.lost, outcome_of_loss(incident));
  return true;
}

// Returns false where it was stopped.
Result<bool> make_drill(Env& env, const DrillPlan& plan, const std::function<bool()>& is_stopped) {
  const RunPaths paths{plan.directory};
  const std::string output = paths.directory + ".log";
  print_message("drill: {} steps, in which {} is lost on purpose; the output is in {}", drill_steps,
                plan.lost, output);
  HF_TRY(const std::optional<ProcessEnd> end, run_drill(env, plan, output, is_stopped));
  if (!end.has_value()) {
    HF_TRY_VOID(remove_drill(env, paths, output));
    return false;
  }
  const bool is_whole = !end->killed && end->code == 0;
  const bool is_refused = !end->killed && is_refusal(static_cast<ExitCode>(end->code));
  if (is_refused)
    return fail(static_cast<ExitCode>(end->code),
                "--drill: the drill could not be made, it ended with {}; {} says why. Mend it, or start "
                "without --drill",
                text_of(*end), output);
  const Result<bool> told = tell_loss(env, plan, paths);
  if (!is_whole || !told.ok() || !*told)
    return fail(
        ExitCode::communication,
        "--drill: {}, so the run would not survive the loss of {}; {} and {} have what happened. Mend it, or "
        "start without --drill (holdfast clean {} before you remove that)",
        !is_whole ? "the drill ended with " + text_of(*end) : std::string("the loss was not noticed"),
        plan.lost, output, paths.directory, paths.directory);
  HF_TRY_VOID(remove_drill(env, paths, output));
  return true;
}

// Ranks of one host, [begin, end).
struct HostRanks {
  std::string name;
  int begin = 0, end = 0;
};
// Returns the ranks of each host, in the order of the hosts.
std::vector<HostRanks> ranks_of_hosts(const std::vector<LaunchHost>& hosts, int ranks) {
  const std::map<std::string, int> counts = ranks_by_host(hosts, ranks);
  std::vector<HostRanks> placed;
  int begin = 0;
  for (const LaunchHost& host : hosts) {
    const auto found = counts.find(host.name);
    if (found == counts.end() || found->second == 0) continue;
    placed.push_back({.name = host.name, .begin = begin, .end = begin + found->second});
    begin += found->second;
  }
  return placed;
}

// Returns how many ranks the drill has that compute: with a range of ranks as many as the hosts have slots for, in
// whole copies of the model; spares are the last ones.
int computing_ranks(const LaunchOptions& options, const Config& config,
                    const std::vector<LaunchHost>& hosts) {
  int ranks = options.ranks;
  int slots = 0;
  for (const LaunchHost& host : hosts) slots += std::max(host.slots, 1);
  if (options.min_ranks > 0 && !hosts.empty()) ranks = std::min(ranks, slots);
  const ParallelConfig& parallel = config.parallel;
  const std::int64_t copy = std::max<std::int64_t>(parallel.tensor * parallel.pipeline, 1);
  std::int64_t copies = (ranks - config.elastic.spares) / copy;
  if (options.min_ranks > 0) copies = std::min(copies, parallel.data > 0 ? parallel.data : parallel.lanes);
  return static_cast<int>(std::max<std::int64_t>(copies * copy, 1));
}

}  // namespace

std::vector<DrillPlan> plan_drills(const std::vector<std::string>& words, const LaunchOptions& options,
                                   const Config& config, const std::vector<LaunchHost>& hosts,
                                   const std::string& directory) {
  std::vector<std::string> drill = {program_path(), "launch", "--faults"};
  std::ranges::copy_if(words, std::back_inserter(drill),
                       [](const std::string& word) { return word != "--drill" && word != "--faults"; });
  // These keys keep the drill from doing anything to the world, and from ending before its loss.
  for (const char* key : {"checkpoint.upload_command", "checkpoint.upload_shard_command",
                          "checkpoint.download_command", "notify.command", "metrics.listen"})
    drill.push_back(fmt::format("--{}=", key));
  for (const auto& [key, value] :
       std::map<std::string, std::string>{{"run.resume", "auto"},
                                          {"run.stop_after", "0s"},
                                          {"trace.steps", "0"},
                                          {"checkpoint.keep_every_steps", "0"},
                                          {"training.steps", std::to_string(drill_steps)},
                                          {"optimizer.warmup_steps", "0"}})
    drill.push_back(fmt::format("--{}={}", key, value));
  std::ranges::move(frequent_saves(config.checkpoint), std::back_inserter(drill));
  const int computing = computing_ranks(options, config, hosts);
  std::vector<DrillPlan> plans;
  const auto lose = [&](const std::string& name, int begin, int end) {
    DrillPlan plan{.lost = name,
                   .directory = fmt::format("{}{}", directory, plans.size() + 1),
                   .faults = {},
                   .words = drill};
    plan.words.push_back("--run.directory=" + plan.directory);
    for (int rank = begin; rank < end; ++rank)
      plan.faults += fmt::format("{}step.begin@{}:{}=kill", plan.faults.empty() ? "" : ",", lost_at, rank);
    plans.push_back(std::move(plan));
  };
  const int rank = computing / 2;
  lose(fmt::format("rank {}", rank), rank, rank + 1);
  std::vector<HostRanks> placed = ranks_of_hosts(hosts, options.ranks);
  std::erase_if(placed, [computing](const HostRanks& host) { return host.begin >= computing; });
  if (placed.size() > 1)
    lose("host " + placed.back().name, placed.back().begin, std::min(placed.back().end, computing));
  return plans;
}

Result<void> make_drills(Env& env, const std::vector<std::string>& words, const LaunchOptions& options,
                         const std::function<bool()>& is_stopped) {
  HF_TRY(const std::vector<Override> overrides, parse_overrides(options.overrides));
  const Result<LoadedConfig> loaded = load_config(env, options.config, overrides);
  HF_TRY_VOID(outcome_of(loaded));
  HF_TRY(const std::vector<LaunchHost> hosts, named_hosts(env, options));
  const std::string directory = new_path_of_drill(env, loaded->config.run.directory);
  if (const std::size_t slash = directory.rfind('/'); slash != std::string::npos && slash > 0)
    HF_TRY_VOID(env.make_directories(directory.substr(0, slash)));
  for (const DrillPlan& plan : plan_drills(words, options, loaded->config, hosts, directory)) {
    HF_TRY(const bool is_made, make_drill(env, plan, is_stopped));
    if (!is_made) return {};  // the run is not begun either
  }
  print_message("drill: it got through; the run begins");
  return {};
}

}  // namespace holdfast::cli
