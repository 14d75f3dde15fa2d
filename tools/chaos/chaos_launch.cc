#include "tools/chaos/chaos_launch.h"

#include <fmt/core.h>

#include <csignal>

#include "runtime/launch/run_processes.h"
#include "runtime/run/run_directory.h"
#include "tools/chaos/run_watcher.h"
#include "watchdog/board.h"

namespace holdfast::chaos {
namespace {

constexpr std::int64_t job_death_limit_ms = 10'000;
constexpr std::int64_t death_look_us = 3'000;

bool is_set_by_plan(const std::string& word) {
  for (const char* key :
       {"--run.directory=", "--parallel.lanes=", "--parallel.tensor_lanes=", "--parallel.data=",
        "--parallel.pipeline=", "--parallel.tensor=", "--elastic.spares="}) {
    if (word.starts_with(key)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> launch_words(const ChaosSetup& setup, const ChaosPlan& plan,
                                      const std::string& directory) {
  const ChaosLayout& layout = plan.layout;
  const std::string saving_key = plan.saving.substr(0, plan.saving.find('=') + 1);
  std::vector<std::string> words = {setup.program, "launch", "--faults", "-np", std::to_string(layout.ranks)};
  words.insert(words.end(), setup.host_options.begin(), setup.host_options.end());
  words.push_back(setup.config);
  for (const std::string& word : setup.overrides) {
    const bool replaced = !saving_key.empty() && word.starts_with(saving_key);
    if (!is_set_by_plan(word) && !replaced) words.push_back(word);
  }
  words.push_back("--run.directory=" + directory);
  words.push_back(fmt::format("--parallel.lanes={}", setup.lanes));
  words.push_back(fmt::format("--parallel.tensor_lanes={}", setup.tensor_lanes));
  words.push_back(fmt::format("--parallel.data={}", layout.data()));
  words.push_back(fmt::format("--parallel.pipeline={}", layout.pipeline));
  words.push_back(fmt::format("--parallel.tensor={}", layout.tensor));
  words.push_back(fmt::format("--elastic.spares={}", layout.spares));
  if (!plan.saving.empty()) words.push_back(plan.saving);
  if (!plan.audits.empty()) words.push_back(plan.audits);
  return words;
}

LaunchEnd end_of(const ChaosLaunch& launch, bool disk_was_full, bool numbers_were_wrong) {
  if (launch.killed) return LaunchEnd::wrong;
  switch (static_cast<ExitCode>(launch.exit_code)) {
    case ExitCode::done:
      return LaunchEnd::done;
    case ExitCode::communication:
      return launch.last_words.empty() ? LaunchEnd::wrong : LaunchEnd::ended_truthfully;
    case ExitCode::checkpoint: {
      const bool says_so = launch.last_words.find("the disk is full") != std::string::npos;
      return disk_was_full && says_so ? LaunchEnd::ended_truthfully : LaunchEnd::wrong;
    }
    case ExitCode::numerics:
      return numbers_were_wrong && !launch.last_words.empty() ? LaunchEnd::ended_truthfully
                                                              : LaunchEnd::wrong;
    default:
      return LaunchEnd::wrong;
  }
}

bool kill_job(Env& env, Process& launcher, const std::string& directory) {
  const std::string launch = RunPaths{directory}.launch();
  const std::vector<std::string> names = starts_of_run(env, directory);
  static_cast<void>(launcher.signal(SIGKILL).ok());
  bool all_gone = launcher.wait_ended(job_death_limit_ms);
  for (const std::string& name : names) {
    const std::string start = launch + "/" + name;
    const std::int64_t until_ns = env.monotonic_ns() + job_death_limit_ms * 1'000'000;
    while (!processes_of_start(env, start).empty() && env.monotonic_ns() < until_ns)
      env.sleep_us(death_look_us);
    all_gone = processes_of_start(env, start).empty() && all_gone;
    static_cast<void>(end_processes_of_start(env, start, 0));
    // The launcher would have removed this directory; the watcher looks only at the ranks of the current
    // start.
    static_cast<void>(env.remove_tree(start).ok());
  }
  remove_dead_boards(env);
  return all_gone;
}

}  // namespace holdfast::chaos
