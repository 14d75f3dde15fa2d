#include "runtime/launch/host_probe.h"

#include <algorithm>
#include <csignal>
#include <memory>
#include <sstream>

#include "runtime/core/processes.h"

namespace holdfast {
namespace {

constexpr std::int64_t probe_death_limit_ms = 10'000, probe_look_ms = 50;
constexpr int not_reached = 255;  // by which ssh says so

// The first of "ssh -x : rsh". ssh by itself would ask a person for a password.
std::vector<std::string> agent_words(Env& env) {
  const std::string agents = env.variable("PRTE_MCA_plm_ssh_agent");
  if (agents.empty()) return {"ssh", "-o", "BatchMode=yes"};
  std::istringstream first(agents.substr(0, agents.find(':')));
  std::vector<std::string> words;
  for (std::string word; first >> word;) words.push_back(word);
  return words;
}

bool is_this_host(Env& env, const std::string& name) {
  return name == env.host_name() || name == "localhost" || name == "127.0.0.1";
}

}  // namespace

std::vector<std::optional<int>> ask_hosts(Env& env, const std::vector<LaunchHost>& hosts,
                                          const std::vector<std::string>& words,
                                          const std::function<std::int64_t()>& left_ms) {
  std::vector<std::optional<int>> answers(hosts.size());
  std::vector<std::unique_ptr<Process>> asking(hosts.size());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (is_this_host(env, hosts[i].name)) {
      answers[i] = 0;
      continue;
    }
    std::vector<std::string> line = agent_words(env);
    line.push_back(hosts[i].name);
    line.insert(line.end(), words.begin(), words.end());
    Result<std::unique_ptr<Process>> started = env.processes().start(
        {.arguments = line, .output = "/dev/null", .own_session = true, .die_with_parent = true});
    if (started.ok()) asking[i] = std::move(started).value();
  }
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (asking[i] == nullptr) continue;
    std::int64_t left = left_ms();
    while (!asking[i]->wait_ended(std::clamp<std::int64_t>(left, 0, probe_look_ms)) && left > 0)
      left = left_ms();
    if (!asking[i]->wait_ended(0)) {
      static_cast<void>(asking[i]->signal_group(SIGKILL).ok());
      asking[i]->wait_ended(probe_death_limit_ms);
    }
    const std::optional<ProcessEnd> end = asking[i]->end();
    if (end.has_value() && !end->killed && end->code != not_reached) answers[i] = end->code;
  }
  return answers;
}

}  // namespace holdfast
