#include "runtime/launch/run_processes.h"

#include <fmt/core.h>

#include <csignal>
#include <functional>

#include "runtime/run/launch_record.h"

namespace holdfast::launch {
namespace {

constexpr std::int64_t look_us = 10'000;
constexpr std::int64_t longest_death_ms = 10'000;
constexpr std::int64_t longest_ending_ms = 5'000;

// Returns the directory of the start that a process belongs to; empty if it belongs to none. `environment`:
// NAME=value, each followed by a zero byte, as in /proc/ID/environ.
std::string start_of(const std::string& environment) {
  const std::string whole = '\0' + environment, mark = fmt::format("{}{}=", '\0', launch_variable);
  const std::size_t at = whole.find(mark);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + mark.size();
  return whole.substr(begin, whole.find('\0', begin) - begin);
}

// Condition on the directory of a start.
using Wanted = std::function<bool(const std::string&)>;

Wanted this_start(const std::string& directory) {
  return [directory](const std::string& start) { return start == directory; };
}

Wanted starts_named(const std::string& token) {
  return [prefix = "/" + token](const std::string& start) {
    const std::size_t slash = start.rfind('/');
    return slash != std::string::npos && start.substr(slash).starts_with(prefix);
  };
}

// Returns the environment of a process from /proc. It is empty while a process is executing another program,
// so it is read again then, or the process would be missed.
Result<std::string> environment_of(Env& env, std::int64_t id) {
  constexpr int longest_looks = 1'000;
  const std::string path = fmt::format("/proc/{}/environ", id);
  for (int looks = 0; looks < longest_looks; ++looks) {
    Result<std::string> environment = env.read_text(path);
    if (!environment.ok() || !environment->empty()) return environment;
    const std::optional<ProcessFacts> facts = env.processes().facts(id);
    if (!facts.has_value() || !facts->becomes_another_program) break;
    env.sleep_us(1'000);
  }
  return env.read_text(path);  // the exec ended between the two looks, or there are no variables
}

std::vector<std::unique_ptr<Process>> find_processes(Env& env, const Wanted& wanted) {
  std::vector<std::unique_ptr<Process>> found;
  Processes& processes = env.processes();
  for (const std::int64_t id : processes.list()) {
    if (id == env.process_id()) continue;
    // The handle is opened first, so that whatever is read afterwards belongs to this process, or the process
    // is gone.
    Result<std::unique_ptr<Process>> process = processes.find(id);
    if (!process.ok() || *process == nullptr) continue;
    const Result<std::string> environment = environment_of(env, id);
    if (!environment.ok() || !wanted(start_of(*environment))) continue;
    if (!(*process)->wait_ended(0)) found.push_back(std::move(process).value());
  }
  return found;
}

// Waits for processes that have no variables any more, so that nobody can say whose they are, and may still hold
// the locks of a start. One that the system holds, of this or of another program, is not waited for to its end.
void let_end(Env& env) {
  Processes& processes = env.processes();
  const auto is_ending = [&](std::int64_t id) {
    const std::optional<ProcessFacts> facts = processes.facts(id);
    return facts.has_value() && facts->is_ending && !facts->of_other_user;
  };
  const std::int64_t begin_ns = env.monotonic_ns();
  for (const std::int64_t id : processes.list()) {
    while (is_ending(id) && env.monotonic_ns() - begin_ns < longest_ending_ms * 1'000'000)
      env.sleep_us(look_us);
  }
}

bool end_processes(Env& env, const Wanted& wanted, std::int64_t grace_ms) {
  const std::int64_t begin_ns = env.monotonic_ns();
  while (true) {
    const std::vector<std::unique_ptr<Process>> left = find_processes(env, wanted);
    if (left.empty()) {
      let_end(env);
      return true;
    }
    const std::int64_t waited_ms = (env.monotonic_ns() - begin_ns) / 1'000'000;
    if (waited_ms > grace_ms + longest_death_ms) return false;
    if (waited_ms >= grace_ms) {
      for (const std::unique_ptr<Process>& process : left) static_cast<void>(process->signal(SIGKILL).ok());
    }
    env.sleep_us(look_us);
  }
}

}  // namespace

std::vector<std::unique_ptr<Process>> processes_of_start(Env& env, const std::string& directory) {
  return find_processes(env, this_start(directory));
}

std::vector<std::unique_ptr<Process>> processes_of_starts(Env& env, const std::string& token) {
  return find_processes(env, starts_named(token));
}

bool end_processes_of_start(Env& env, const std::string& directory, std::int64_t grace_ms) {
  return end_processes(env, this_start(directory), grace_ms);
}

bool end_processes_of_starts(Env& env, const std::string& token, std::int64_t grace_ms) {
  return end_processes(env, starts_named(token), grace_ms);
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

}  // namespace holdfast::launch
