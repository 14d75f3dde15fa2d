#include "runtime/launch/run_processes.h"

#include <csignal>

#include "runtime/train/launch_record.h"

namespace holdfast {
namespace {

constexpr std::int64_t look_us = 10'000;
constexpr std::int64_t longest_death_ms = 10'000;

// `environment`: NAME=value, each with a zero byte at its end, as in /proc/ID/environ.
bool has_variable(const std::string& environment, const std::string& line) {
  const std::string whole = '\0' + environment;
  return whole.find('\0' + line + '\0') != std::string::npos;
}

}  // namespace

std::vector<std::unique_ptr<Process>> processes_of_start(Env& env, const std::string& directory) {
  const std::string mark = fmt::format("{}={}", launch_variable, directory);
  std::vector<std::unique_ptr<Process>> found;
  Processes& processes = env.processes();
  for (const std::int64_t id : processes.list()) {
    if (id == env.process_id()) continue;
    // The handle first: what is read afterwards is this process's, or it is gone.
    Result<std::unique_ptr<Process>> process = processes.find(id);
    if (!process.ok() || *process == nullptr) continue;
    const Result<std::string> environment = env.read_text(fmt::format("/proc/{}/environ", id));
    if (!environment.ok() || !has_variable(*environment, mark)) continue;
    if (!(*process)->wait_ended(0)) found.push_back(std::move(process).value());
  }
  return found;
}

bool end_processes_of_start(Env& env, const std::string& directory, std::int64_t grace_ms) {
  const std::int64_t begin_ns = env.monotonic_ns();
  while (true) {
    const std::vector<std::unique_ptr<Process>> left = processes_of_start(env, directory);
    if (left.empty()) return true;
    const std::int64_t waited_ms = (env.monotonic_ns() - begin_ns) / 1'000'000;
    if (waited_ms > grace_ms + longest_death_ms) return false;
    if (waited_ms >= grace_ms) {
      for (const std::unique_ptr<Process>& process : left) static_cast<void>(process->signal(SIGKILL).ok());
    }
    env.sleep_us(look_us);
  }
}

void reap_adopted(Env& env, std::int64_t own) {
  if (env.process_id() != 1) return;
  Processes& processes = env.processes();
  for (const std::int64_t id : processes.list()) {
    const std::optional<ProcessFacts> facts = processes.facts(id);
    if (id == own || !facts.has_value() || facts->parent != 1 || facts->state != 'Z') continue;
    Result<std::unique_ptr<Process>> process = processes.find(id);
    if (process.ok() && *process != nullptr) static_cast<void>((*process)->end());
  }
}

}  // namespace holdfast
