#include "runtime/cli/drill.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <map>
#include <memory>
#include <optional>

#include "runtime/config/loader.h"
#include "runtime/core/units.h"
#include "runtime/launch/named_hosts.h"
#include "runtime/os/console.h"
#include "runtime/os/paths.h"
#include "runtime/os/processes.h"
#include "runtime/report/incident.h"
#include "runtime/run/run_history.h"

namespace holdfast::cli {
namespace {

// Steps of a drill, and the one that a process does not begin. A start that is made again has fewer left than that.
constexpr int drill_steps = 8, lost_at = 5;
constexpr std::int64_t look_ms = 200;

std::string path_of_drill(const std::string& run_directory) {
  std::string path = run_directory;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path + "-drill";
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
               : std::string(
                     "another start was needed (no whole copy of the model was left: "
                     "parallel.data, elastic.spares)");
  return fmt::format("{}; {} to notice, {} until it computed again, {} step{} again", how,
                     format_seconds(incident.cost.unnoticed_s), format_seconds(incident.cost.pause_s),
                     incident.fault().lost_steps, incident.fault().lost_steps == 1 ? "" : "s");
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
    return fault.level != FaultLevel::none &&
           fault.cost_ms > 0.0;  // of several together the last has the cost
  });
  if (mended == log.faults.end()) return false;
  HF_TRY(const Incident incident,
         read_incident(env, paths, static_cast<std::size_t>(mended - log.faults.begin()) + 1));
  print_message("drill: {} lost: {}", plan.lost, outcome_of_loss(incident));
  return true;
}

// Returns false where it was stopped.
Result<bool> make_drill(Env& env, const DrillPlan& plan, const RunPaths& paths,
                        const std::function<bool()>& is_stopped) {
  const std::string output = paths.directory + ".log";
  print_message("drill: {} steps, in which {} is lost on purpose; the output is in {}", drill_steps,
                plan.lost, output);
  HF_TRY(const std::optional<ProcessEnd> end, run_drill(env, plan, output, is_stopped));
  if (!end.has_value()) return false;
  const bool is_whole = !end->killed && end->code == 0;
  const Result<bool> told = tell_loss(env, plan, paths);
  if (!is_whole || !told.ok() || !*told)
    return fail(
        ExitCode::communication,
        "--drill: {}, so the run would not survive the loss of {}; {} and {} have what happened. Mend it, or "
        "start without --drill",
        !is_whole ? "the drill ended with " + text_of(*end) : std::string("the loss was not noticed"),
        plan.lost, output, paths.directory);
  HF_TRY_VOID(env.remove_tree(paths.directory));
  HF_TRY_VOID(env.remove_tree(output));
  return true;
}

// Returns the host whose ranks are the last ones; empty where all ranks are on one host.
std::string last_host(const std::vector<LaunchHost>& hosts, const std::map<std::string, int>& ranks,
                      int all) {
  const auto last = std::ranges::find_if(hosts.rbegin(), hosts.rend(), [&](const LaunchHost& host) {
    const auto found = ranks.find(host.name);
    return found != ranks.end() && found->second > 0;
  });
  return last == hosts.rend() || ranks.at(last->name) >= all ? "" : last->name;
}

}  // namespace

std::vector<DrillPlan> plan_drills(const std::vector<std::string>& words, const LaunchOptions& options,
                                   const CheckpointConfig& saves, const std::vector<LaunchHost>& hosts,
                                   const std::string& directory) {
  std::vector<std::string> drill = {program_path(), "launch", "--faults"};
  std::ranges::copy_if(words, std::back_inserter(drill), [](const std::string& word) {
    return word != "--drill" && word != "--preflight" && word != "--faults";
  });
  // What the drill must not do to the world, and what would end it before its loss.
  for (const char* key : {"checkpoint.upload_command", "checkpoint.upload_shard_command",
                          "checkpoint.download_command", "notify.command", "metrics.listen"})
    drill.push_back(fmt::format("--{}=", key));
  for (const auto& [key, value] :
       std::map<std::string, std::string>{{"run.directory", directory},
                                          {"run.resume", "auto"},
                                          {"run.stop_after", "0s"},
                                          {"training.steps", std::to_string(drill_steps)},
                                          {"optimizer.warmup_steps", "0"}})
    drill.push_back(fmt::format("--{}={}", key, value));
  std::ranges::move(frequent_saves(saves), std::back_inserter(drill));
  const int rank = options.ranks / 2;
  std::vector<DrillPlan> plans = {{.lost = fmt::format("rank {}", rank),
                                   .faults = fmt::format("step.begin@{}:{}=kill", lost_at, rank),
                                   .words = drill}};
  const std::map<std::string, int> ranks = ranks_by_host(hosts, options.ranks);
  const std::string host = last_host(hosts, ranks, options.ranks);
  if (host.empty()) return plans;
  plans.push_back({.lost = fmt::format("host {}", host), .faults = {}, .words = drill});
  for (int lost = options.ranks - ranks.at(host); lost < options.ranks; ++lost)
    plans.back().faults +=
        fmt::format("{}step.begin@{}:{}=kill", plans.back().faults.empty() ? "" : ",", lost_at, lost);
  return plans;
}

Result<void> make_drills(Env& env, const std::vector<std::string>& words, const LaunchOptions& options,
                         const std::function<bool()>& is_stopped) {
  HF_TRY(const std::vector<Override> overrides, parse_overrides(options.overrides));
  const Result<LoadedConfig> loaded = load_config(env, options.config, overrides);
  HF_TRY_VOID(outcome_of(loaded));
  HF_TRY(const std::vector<LaunchHost> hosts, named_hosts(env, options));
  const RunPaths paths{path_of_drill(loaded->config.run.directory)};
  HF_TRY(const FileStatus there, env.status(paths.directory));
  if (there.exists)
    return fail(ExitCode::config,
                "--drill: {} is there, of a drill that did not get through: look at it, then remove it",
                paths.directory);
  for (const DrillPlan& plan :
       plan_drills(words, options, loaded->config.checkpoint, hosts, paths.directory)) {
    HF_TRY(const bool is_made, make_drill(env, plan, paths, is_stopped));
    if (!is_made) return {};  // the run is not begun either
  }
  print_message("drill: it got through; the run begins");
  return {};
}

}  // namespace holdfast::cli
