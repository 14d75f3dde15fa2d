#include "runtime/run/launch_record.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <map>
#include <sstream>

#include "runtime/core/json.h"
#include "runtime/core/record.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/posix_start.h"
#include "runtime/os/processes.h"
#include "runtime/run/event_reading.h"

namespace holdfast::run {
namespace {

constexpr std::string_view file_prefix = "rank-", guard_prefix = "guard-";

Result<void> write_fact(Env& env, const std::string& name, const Json& what) {
  const std::string directory = env.variable(launch_variable);
  if (directory.empty()) return {};
  return env.append_line(directory + "/" + name, what.dump_any());
}

void report_rank(Env& env, int rank, const Json& what) {
  const Result<void> reported = write_fact(env, fmt::format("{}{:05d}", file_prefix, rank), what);
  if (!reported.ok() && rank == 0) {
    os::print_message("the launcher does not learn how this rank is: {}", reported.error().message);
  }
}

std::optional<ExitCode> exit_code_of(std::int64_t number) {
  for (const ExitCode code :
       {ExitCode::done, ExitCode::config, ExitCode::does_not_fit, ExitCode::data, ExitCode::checkpoint,
        ExitCode::numerics, ExitCode::saved, ExitCode::communication}) {
    if (static_cast<int>(code) == number) return code;
  }
  return std::nullopt;
}

std::int64_t whole_number_of(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_number_integer() ? json[key].get<std::int64_t>() : -1;
}

Reach reach_of(std::int64_t number) {
  for (const Reach reach : {Reach::run, Reach::minute, Reach::everywhere, Reach::peers}) {
    if (static_cast<int>(reach) == number) return reach;
  }
  return Reach::host;
}

// The lines that are whole. The newest first line counts: a process that the launcher of MPI started again
// under the same rank appends to the same file.
std::optional<LaunchedRank> parse_rank(int rank, const std::string& text) {
  std::optional<LaunchedRank> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse_any(line);
    if (!json.is_object()) continue;
    if (json.contains("host") && json["host"].is_string()) {
      found = LaunchedRank{.rank = rank,
                           .host = json["host"].get<std::string>(),
                           .host_id = text_of(json, "host_id"),
                           .process = whole_number_of(json, "process"),
                           .started_ticks = whole_number_of(json, "started_ticks")};
    }
    if (!found.has_value()) continue;
    if (json.contains("exit_code")) found->end = exit_code_of(whole_number_of(json, "exit_code"));
    if (json.contains("unfit")) {
      found->unfit =
          UnfitReport{.code = exit_code_of(whole_number_of(json, "code")).value_or(ExitCode::config),
                      .reach = reach_of(whole_number_of(json, "reach")),
                      .step = text_of(json, "step"),
                      .sentence = text_of(json, "unfit")};
    }
    if (json.contains("signal")) found->signal = static_cast<int>(whole_number_of(json, "signal"));
  }
  return found;
}

// Calls `take` with every line of the guards' files, and the id of the guard's host.
void read_guard_facts(Env& env, const std::string& directory,
                      const std::function<void(const std::string& host_id, const Json& fact)>& take) {
  const Result<std::vector<std::string>> names = env.list(directory);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    if (!name.starts_with(guard_prefix)) continue;
    const Result<std::string> text =
        read_text_within(env, directory + "/" + name, text_limits::launch_record);
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);) {
      if (const Json fact = Json::parse_any(line); fact.is_object())
        take(name.substr(guard_prefix.size()), fact);
    }
  }
}

}  // namespace

std::string launched_start(Env& env) {
  const std::string directory = env.variable(launch_variable);
  return directory.substr(directory.rfind('/') + 1);  // npos + 1 is 0
}

std::string launch_scratch_name(const std::string& start) {
  return "holdfast-launch-" + start;
}

std::string launch_scratch(Env& env, const std::string& start) {
  return env.shared_memory_path(launch_scratch_name(start));
}

void use_launch_scratch(Env& env) {
  constexpr const char* variable = "OMPI_MCA_btl_sm_backing_directory";
  const std::string start = launched_start(env);
  if (start.empty() || !env.variable(variable).empty()) return;
  const Result<std::string> scratch = env.make_shared_directory(launch_scratch_name(start));
  if (scratch.ok()) set_variable_if_unset(variable, *scratch);
}

void report_ready_to_launcher(Env& env, int rank) {
  const ProcessIdentity own = ProcessIdentity::of(env.processes(), env.process_id());
  report_rank(env, rank,
              {{"host", env.host_name()},
               {"host_id", env.host_id()},
               {"process", own.id},
               {"started_ticks", own.started_ticks}});
}

void report_signal_to_launcher(Env& env, int rank, int signal) {
  report_rank(env, rank, {{"signal", signal}});
}

void report_end_to_launcher(Env& env, int rank, ExitCode code, int signal) {
  report_rank(env, rank, {{"exit_code", static_cast<int>(code)}, {"signal", signal}});
}

void report_unfit_to_launcher(Env& env, int rank, const std::string& step, const Error& error) {
  report_rank(env, rank,
              {{"unfit", error.message},
               {"step", step},
               {"code", static_cast<int>(error.code)},
               {"reach", static_cast<int>(error.reach)}});
}

// A failure is not reported: there may be no reader of the guard's own stream any more.
void report_hang_to_launcher(Env& env, int rank, const std::string& sentence) {
  static_cast<void>(write_fact(env, fmt::format("{}{}", guard_prefix, env.host_id()),
                               {{"time_us", env.wall_time_us()}, {"rank", rank}, {"verdict", sentence}})
                        .ok());
}

void report_death_to_launcher(Env& env, int rank, std::int64_t process, const std::string& cause,
                              std::uint64_t step) {
  static_cast<void>(write_fact(env, fmt::format("{}{}", guard_prefix, env.host_id()),
                               {{"rank", rank},
                                {"process", process},
                                {"ended", cause},
                                {"step", step},
                                {"time_us", env.wall_time_us()}})
                        .ok());
}

void report_kernel_fault_to_launcher(Env& env, const KernelFault& fault) {
  static_cast<void>(write_fact(env, fmt::format("{}{}", guard_prefix, env.host_id()),
                               {{"time_us", env.wall_time_us()}, {"kernel_fault", field_to_json(fault)}})
                        .ok());
}

void report_silent_hosts_to_launcher(Env& env, const std::vector<std::string>& hosts) {
  Json names = Json::array();
  for (const std::string& host : hosts) names.push_back(host);
  static_cast<void>(write_fact(env, fmt::format("{}{}", guard_prefix, env.host_id()),
                               {{"host", env.host_name()}, {"silent", std::move(names)}})
                        .ok());
}

bool is_here(Env& env, const LaunchedRank& rank) {
  return rank.host_id == env.host_id();
}

std::vector<LaunchedRank> read_launched_ranks(Env& env, const std::string& directory) {
  std::vector<LaunchedRank> ranks;
  const Result<std::vector<std::string>> names = env.list(directory);
  if (!names.ok()) return ranks;
  for (const std::string& name : *names) {
    int rank = -1;
    if (!name.starts_with(file_prefix)) continue;
    std::from_chars(name.data() + file_prefix.size(), name.data() + name.size(), rank);
    const Result<std::string> text =
        read_text_within(env, directory + "/" + name, text_limits::launch_record);
    if (rank < 0 || !text.ok()) continue;
    if (std::optional<LaunchedRank> found = parse_rank(rank, *text)) ranks.push_back(*std::move(found));
  }
  read_guard_facts(env, directory, [&](const std::string& host_id, const Json& fact) {
    for (LaunchedRank& rank : ranks) {
      const bool is_of_rank = rank.host_id == host_id && rank.rank == whole_number_of(fact, "rank") &&
                              rank.process == whole_number_of(fact, "process");
      if (!is_of_rank || !fact.contains("ended")) continue;
      rank.cause = text_of(fact, "ended");
      rank.step_at_death =
          static_cast<std::uint64_t>(std::max<std::int64_t>(whole_number_of(fact, "step"), 0));
      rank.died_us = std::max<std::int64_t>(whole_number_of(fact, "time_us"), 0);
    }
  });
  return ranks;
}

std::vector<ReportedKernelFault> read_reported_kernel_faults(Env& env, const std::string& directory) {
  std::vector<ReportedKernelFault> faults;
  read_guard_facts(env, directory, [&](const std::string&, const Json& fact) {
    ReportedKernelFault one{.time_us = whole_number_of(fact, "time_us")};
    std::string problem;
    const auto found = fact.find("kernel_fault");
    if (found != fact.end() && field_from_json(*found, one.fault, problem) && one.fault.is_valid())
      faults.push_back(std::move(one));
  });
  std::ranges::stable_sort(faults, {}, &ReportedKernelFault::time_us);
  return faults;
}

std::vector<ReportedHang> read_reported_hangs(Env& env, const std::string& directory) {
  std::vector<ReportedHang> verdicts;
  read_guard_facts(env, directory, [&](const std::string&, const Json& fact) {
    if (!fact.contains("verdict") || !fact["verdict"].is_string()) return;
    verdicts.push_back({.time_us = whole_number_of(fact, "time_us"),
                        .rank = static_cast<int>(whole_number_of(fact, "rank")),
                        .sentence = fact["verdict"].get<std::string>()});
  });
  std::ranges::stable_sort(verdicts, {}, &ReportedHang::time_us);
  return verdicts;
}

std::vector<SilentPair> read_silent_pairs(Env& env, const std::string& directory) {
  std::map<std::string, std::vector<std::string>> newest;  // by host
  read_guard_facts(env, directory, [&](const std::string&, const Json& fact) {
    if (!fact.contains("silent") || !fact["silent"].is_array()) return;
    std::vector<std::string>& silent = newest[text_of(fact, "host")];
    silent.clear();
    for (const Json& host : fact["silent"]) {
      if (host.is_string()) silent.push_back(host.get<std::string>());
    }
  });
  std::vector<SilentPair> pairs;
  for (const auto& [host, silent] : newest) {
    for (const std::string& of : silent) pairs.push_back({.from = host, .of = of});
  }
  return pairs;
}

}  // namespace holdfast::run
