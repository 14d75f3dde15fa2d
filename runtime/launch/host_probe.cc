#include "runtime/launch/host_probe.h"

#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <sstream>

#include "runtime/core/text.h"
#include "runtime/launch/named_hosts.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/processes.h"

namespace holdfast::launch {
namespace {

constexpr std::int64_t probe_death_limit_ms = 10'000, probe_look_us = 20'000;
constexpr std::int64_t meeting_reserve_ms = 2'000;  // from the end of a meeting to that of its last guest
constexpr int not_reached = 255;                    // exit code of ssh when it does not reach a host
constexpr std::int64_t min_silence_ms = 3'000, longest_silence_ms = 10'000, silence_factor = 4;
// Minimum for a suspected host: guards have already waited for it, for longer than a login takes.
constexpr std::int64_t min_silence_of_suspected_ms = 500;

}  // namespace

// Takes the first of "ssh -x : rsh". BatchMode keeps ssh from asking the user for a password.
std::vector<std::string> host_agent(Env& env) {
  const std::string agents = env.variable("PRTE_MCA_plm_ssh_agent");
  if (agents.empty()) return {"ssh", "-o", "BatchMode=yes"};
  std::istringstream first(agents.substr(0, agents.find(':')));
  std::vector<std::string> words;
  for (std::string word; first >> word;) words.push_back(word);
  return words;
}

namespace {

// Returns whether `name` is this host, for which Slurm may use another name.
bool is_this_host(Env& env, const std::string& name) {
  return name == env.host_name() || name == "localhost" || name == "127.0.0.1" ||
         (!name.empty() && name == env.variable("SLURMD_NODENAME"));
}

ProcessStart question(Env& env, const std::string& host, const std::vector<std::string>& words) {
  ProcessStart start{.arguments = {}, .own_session = true, .die_with_parent = true};
  if (is_this_host(env, host)) {
    start.arguments = words;
    return start;
  }
  if (mpirun_uses_srun(env)) {
    start.arguments = srun_line(env, host, words);
    start.variables[srun_error_variable] = srun_error_code;
    return start;
  }
  start.arguments = host_agent(env);
  start.arguments.push_back(host);
  for (const std::string& word : words) start.arguments.push_back(shell_word(word));
  return start;
}

struct AskedHost {
  std::size_t index = 0;
  std::unique_ptr<Process> process = {};
  std::string output = {};  // file for its output
  HeardHost heard = {};
  bool has_ended = false;
  std::int64_t ended_after_ms = -1;
};

std::optional<AskedHost> ask_host(Env& env, const std::string& name, const std::vector<std::string>& words) {
  if (!may_be_host_name(name)) return std::nullopt;
  const std::string folder = env.variable("TMPDIR").empty() ? "/tmp" : env.variable("TMPDIR");
  AskedHost host{.output = fmt::format("{}/holdfast-ask-{:016x}", folder, env.random_u64())};
  ProcessStart start = question(env, name, words);
  start.output = host.output;
  Result<std::unique_ptr<Process>> started = env.processes().start(start);
  if (!started.ok()) {  // without a file, the host is heard from when it ends
    static_cast<void>(env.remove(host.output).ok());
    start.output = host.output = "/dev/null";
    started = env.processes().start(start);
  }
  if (!started.ok()) return std::nullopt;
  host.process = std::move(started).value();
  return host;
}

bool has_spoken(Env& env, const AskedHost& host) {
  const Result<FileStatus> output = env.status(host.output);
  return output.ok() && output->bytes > 0;
}

// Returns the end of a file; nothing where it cannot be read.
std::string end_of_file(Env& env, const std::string& path) {
  const Result<std::unique_ptr<File>> file = env.open(path, OpenMode::read);
  if (!file.ok()) return {};
  const Result<std::uint64_t> size = (*file)->size();
  if (!size.ok()) return {};
  std::string text(std::min<std::uint64_t>(*size, HostAnswer::output_bytes), '\0');
  const Result<void> read = (*file)->read_at(*size - text.size(), std::as_writable_bytes(std::span(text)));
  return read.ok() ? text : std::string();
}

HostAnswer answer_of(Env& env, AskedHost& host, int min_not_reached) {
  if (!host.process->wait_ended(0)) {
    static_cast<void>(host.process->signal_group(SIGKILL).ok());
    host.process->wait_ended(probe_death_limit_ms);
  }
  HostAnswer answer;
  if (host.output != "/dev/null") {
    answer.output = printable(end_of_file(env, host.output));
    static_cast<void>(env.remove(host.output).ok());
  }
  const std::optional<ProcessEnd> end = host.process->end();
  answer.ended_after_ms = host.ended_after_ms;
  if (end.has_value() && !end->killed && end->code < min_not_reached) answer.code = end->code;
  return answer;
}

}  // namespace

std::int64_t silence_limit_ms(std::span<const HeardHost> asked, bool is_suspected) {
  std::size_t others = 0, heard = 0;
  std::int64_t slowest_ms = 0;
  for (const HeardHost& host : asked) {
    if (host.is_suspected) continue;
    ++others;
    if (host.after_ms < 0) continue;
    ++heard;
    slowest_ms = std::max(slowest_ms, host.after_ms);
  }
  if (others == 0) return min_silence_ms;
  if (heard == 0 || 2 * heard < others) return longest_silence_ms;
  return std::max(is_suspected ? min_silence_of_suspected_ms : min_silence_ms, silence_factor * slowest_ms);
}

namespace {
constexpr std::string_view greeting = "here ";
}

std::string HostAnswer::last_line() const {
  constexpr const char* blanks = " \t\r\n";
  const std::size_t last = output.find_last_not_of(blanks);
  if (last == std::string::npos) return {};
  const std::size_t before = output.rfind('\n', last);
  const std::size_t first = output.find_first_not_of(blanks, before == std::string::npos ? 0 : before);
  const std::string line = output.substr(first, last + 1 - first);
  if (line.starts_with(greeting)) return {};
  constexpr std::string_view program = "holdfast: ";
  return line.starts_with(program) ? line.substr(program.size()) : line;
}

std::string HostAnswer::own_name() const {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(greeting)) continue;
    if (std::string name = line.substr(greeting.size()); may_be_host_name(name)) return name;
  }
  return {};
}

std::vector<HostAnswer> ask_hosts(Env& env, const std::vector<LaunchHost>& hosts,
                                  const std::vector<std::string>& words,
                                  const std::function<std::int64_t()>& left_ms, bool here_too) {
  return ask_hosts(
      env, hosts, [&](std::size_t) { return words; }, left_ms, here_too, nullptr);
}

std::vector<HostAnswer> ask_hosts(Env& env, const std::vector<LaunchHost>& hosts, const WordsOfHost& words,
                                  const std::function<std::int64_t()>& left_ms, bool here_too,
                                  HostMeeting* meeting) {
  const int min_not_reached = mpirun_uses_srun(env) ? min_srun_error : not_reached;
  std::vector<HostAnswer> answers(hosts.size());
  std::vector<AskedHost> asked;
  const std::int64_t begin_ns = env.monotonic_ns();
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!here_too && is_this_host(env, hosts[i].name)) {
      answers[i].code = 0;
    } else if (std::optional<AskedHost> host = ask_host(env, hosts[i].name, words(i)); host.has_value()) {
      host->index = i;
      host->heard.is_suspected = hosts[i].is_suspected;
      asked.push_back(std::move(*host));
    }
  }
  const auto is_pending = [](const AskedHost& host) { return !host.has_ended; };
  while (std::ranges::any_of(asked, is_pending) && left_ms() > 0) {
    const std::int64_t now_ms = (env.monotonic_ns() - begin_ns) / 1'000'000;
    for (AskedHost& host : asked) {
      if (host.has_ended) continue;
      host.has_ended = host.process->wait_ended(0);
      if (host.has_ended) host.ended_after_ms = now_ms;
      if (host.heard.after_ms < 0 && (host.has_ended || has_spoken(env, host))) host.heard.after_ms = now_ms;
    }
    std::vector<HeardHost> heard;
    for (const AskedHost& host : asked) heard.push_back(host.heard);
    const auto is_waited_for = [&](const AskedHost& host) {
      return is_pending(host) &&
             (host.heard.after_ms >= 0 || now_ms < silence_limit_ms(heard, host.heard.is_suspected));
    };
    if (std::ranges::none_of(asked, is_waited_for)) break;
    if (meeting != nullptr) {
      meeting->look();
      const auto is_missed = [&](const AskedHost& host) {
        return is_waited_for(host) && !meeting->has_come(host.index);
      };
      const bool is_late = left_ms() < HostMeeting::report_ms + meeting_reserve_ms;
      if (is_late || std::ranges::none_of(asked, is_missed)) meeting->begin();
    }
    env.sleep_us(probe_look_us);
  }
  for (AskedHost& host : asked) answers[host.index] = answer_of(env, host, min_not_reached);
  return answers;
}

}  // namespace holdfast::launch
