// holdfast preflight: tries the hosts of a run before it is started, and says which of them are not fit.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <utility>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "runtime/cli/host_trial.h"
#include "runtime/cli/link_trial.h"
#include "runtime/cli/preflight.h"
#include "runtime/config/loader.h"
#include "runtime/core/json.h"
#include "runtime/core/record.h"
#include "runtime/core/text.h"
#include "runtime/launch/host_probe.h"
#include "runtime/launch/host_ready.h"
#include "runtime/launch/named_hosts.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/run/host_book.h"

namespace holdfast::cli {
namespace {

constexpr const char* preflight_usage =
    "usage: holdfast preflight [RUN.toml] [--host LIST | --hostfile F] [--seconds N] [--json]\n"
    "                          [--section.key=value ...]\n"
    "       holdfast preflight --rules\n"
    "\n"
    "Tries hosts before a run is started on them, all at once: steps of the run's shapes on every\n"
    "device at full load, whose bits are known because all hosts begin with the same state; memory;\n"
    "the disk of the run directory; clocks, programs and sensors; then the links between all pairs,\n"
    "under mpirun. A host is not fit if its numbers are wrong, or it is slower than the others or than\n"
    "it used to be. Without RUN.toml the shapes are those of llama-15m; without hosts, the nodes of the\n"
    "Slurm job, or this host. What is found is kept for `holdfast hosts` and for the next preflight.\n"
    "\n"
    "  --host LIST    hosts, as in a:4,b:4\n"
    "  --hostfile F   hosts, one a line: name slots=4\n"
    "  --seconds N    how long each device computes (default 10)\n"
    "  --json         one JSON object\n"
    "  --rules        the table of rules in docs/preflight.md\n"
    "\n"
    "Exit code 0: all hosts are fit; 76: some host is not. docs/preflight.md has the rules.\n";

constexpr std::string_view measured = "measured ";  // before the record in what a host prints
constexpr std::int64_t reserve_ms = 120'000;        // for all that a host does beside its steps

// Returns what the host has printed; none if it has not.
std::optional<HostTrials> find_trials(const std::string& output) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(measured)) continue;
    Result<HostTrials> trials = record_from_text<HostTrials>(line.substr(measured.size()));
    if (trials.ok()) return std::move(trials).value();
  }
  return std::nullopt;
}

std::string silence_of(const HostAnswer& answer) {
  if (!answer.code.has_value()) return "it does not answer: it cannot be reached, or did not end in time";
  const std::string line = answer.last_line();
  return line.empty() ? fmt::format("it ended with exit code {}", *answer.code) : line;
}

std::string share(double value) {
  return value > 0.0 ? fmt::format("{:.0f} %", 100.0 * value) : std::string("-");
}

Json json_of(const Preflight& preflight) {
  Json hosts = Json::array();
  for (std::size_t i = 0; i < preflight.hosts.size(); ++i) {
    const TriedHost& host = preflight.hosts[i];
    const HostVerdict& verdict = preflight.verdicts[i];
    Json reasons = Json::array();
    for (const PreflightReason& reason : verdict.reasons) {
      const Json each = {{"rule", std::string(reason.rule)}, {"sentence", reason.sentence}};
      reasons.push_back(each);
    }
    Json json = {{"host", host.name}, {"fit", verdict.is_fit()}, {"reasons", reasons}};
    if (verdict.clock_ms.has_value()) json["clock_ms"] = *verdict.clock_ms;
    if (host.trials.has_value()) json["trials"] = field_to_json(*host.trials);
    hosts.push_back(json);
  }
  Json links = Json::array();
  for (const LinkTrial& link : preflight.links) {
    Json each = {{"from", preflight.hosts[link.from].name},
                 {"to", preflight.hosts[link.to].name},
                 {"MB_per_s", link.MB_per_s},
                 {"latency_us", link.latency_us}};
    if (link.lost_share.has_value()) each["lost_share"] = *link.lost_share;
    links.push_back(each);
  }
  const Json json = {{"fit", preflight.all_fit()}, {"hosts", hosts}, {"links", links}};
  return json;
}

Result<int> try_this_host(Env& env, const std::vector<std::string>& words) {
  if (words.size() != 2)
    return fail(ExitCode::config, "preflight --on-host is for preflight itself, which calls it on hosts");
  fmt::print("here {}\n", env.host_name());
  static_cast<void>(std::fflush(stdout));
  HF_TRY(const TrialQuestion question, record_from_text<TrialQuestion>(words[1]));
  HF_TRY(const HostTrials trials, try_host(env, question));
  fmt::print("{}{}\n", measured, record_to_text(trials));
  return 0;
}

// Prints the table of docs/preflight.md.
void print_rules() {
  fmt::print("| rule | a host is not fit if it | bound | from |\n|---|---|---|---|\n");
  for (const PreflightRule& rule : preflight_rules()) {
    const std::string bound =
        rule.bound == PreflightRule::Bound::none ? "" : fmt::format("{:g} {}", rule.limit, rule.unit);
    fmt::print("| `{}` | {} | {} | {} |\n", rule.name, rule.says, bound, rule.origin);
  }
}

// Takes the overrides of the config out of the words: what has a section, and with a config what has a value and is no option.
std::vector<std::string> take_overrides(std::vector<std::string>& words) {
  const bool has_config = !words.empty() && !words.front().starts_with('-');
  const auto is_other = [&](const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    const bool is_option = name == "--host" || name == "--hostfile" || name == "--seconds";
    const bool has_section = name.find('.') != std::string::npos;
    return !word.starts_with("--") || is_option || !(has_section || (has_config && name != word));
  };
  const auto begin = std::ranges::stable_partition(words, is_other).begin();
  std::vector<std::string> overrides(begin, words.end());
  words.erase(begin, words.end());
  return overrides;
}

Result<int> preflight(Env& env, std::vector<std::string> words) {
  const std::vector<std::string> overrides = take_overrides(words);
  std::string config;
  if (!words.empty() && !words.front().starts_with('-')) {
    config = words.front();
    words.erase(words.begin());
  }
  HF_TRY(const Arguments arguments,
         Arguments::parse("preflight", words, {}, {"host", "hostfile", "seconds"}, {"json", "rules"}));
  HF_TRY(const double seconds, arguments.real("seconds", 10.0, 0.1));
  if (seconds > 3600.0)
    return fail(ExitCode::config, "preflight: --seconds must be at most 3600, got {:g}", seconds);
  if (arguments.has("rules")) {
    print_rules();
    return 0;
  }
  if (arguments.has("host") && arguments.has("hostfile"))
    return fail(ExitCode::config, "preflight: --host and --hostfile both name the hosts; give one of them");
  if (!overrides.empty() && config.empty())
    return fail(ExitCode::config, "preflight needs the config file before its overrides\n{}",
                preflight_usage);
  HF_TRY(const std::vector<LaunchHost> hosts, named_hosts(env, {.ranks = 1,
                                                                .hostfile = arguments.text("hostfile", ""),
                                                                .hosts = arguments.text("host", "")}));
  HF_TRY(const Preflight found, run_preflight(env, hosts, config, overrides, seconds));
  if (arguments.has("json")) {
    fmt::print("{}\n", json_of(found).dump_any());
  } else {
    fmt::print("{}", to_text(found));
  }
  return found.all_fit() ? 0 : static_cast<int>(ExitCode::communication);
}

}  // namespace

namespace {

// Tries the links between the hosts that have answered; false: they do not work. Where there is no mpirun, nothing is known.
bool try_links_of(Env& env, const std::vector<LaunchHost>& hosts, Preflight& preflight,
                  const std::function<bool()>& is_stopped) {
  std::vector<LaunchHost> there;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!preflight.hosts[i].trials.has_value()) continue;
    there.push_back(hosts[i]);
    places.push_back(i);
  }
  if (there.size() < 2) return true;
  const Result<std::vector<LinkTrial>> links = try_links(env, there, is_stopped);
  if (!links.ok()) {
    preflight.links_trouble = links.error().message;
    return links.error().code == ExitCode::config;
  }
  for (LinkTrial link : *links) {
    link.from = places[link.from];
    link.to = places[link.to];
    preflight.links.push_back(link);
  }
  return true;
}

// Returns the slowest and the fastest link, for people.
std::string text_of_links(const Preflight& preflight) {
  if (preflight.links.empty())
    return preflight.links_trouble.empty()
               ? ""
               : fmt::format("no links were tried: {}\n", printable(preflight.links_trouble));
  const auto [slowest, fastest] = std::ranges::minmax_element(preflight.links, {}, &LinkTrial::MB_per_s);
  const auto text = [&](const LinkTrial& link) {
    return fmt::format("{:.0f} MB/s and {:.0f} us between {} and {}", link.MB_per_s, link.latency_us,
                       preflight.hosts[link.from].name, preflight.hosts[link.to].name);
  };
  if (preflight.links.size() == 1) return fmt::format("1 link: {}\n", text(*slowest));
  return fmt::format("{} links, from {} to {}\n", preflight.links.size(), text(*slowest), text(*fastest));
}

}  // namespace

bool Preflight::all_fit() const {
  return std::ranges::all_of(verdicts, &HostVerdict::is_fit);
}

std::map<std::string, std::string> Preflight::unfit() const {
  std::map<std::string, std::string> sentences;
  for (const HostVerdict& verdict : verdicts) {
    std::string why;
    for (const PreflightReason& reason : verdict.reasons) why += (why.empty() ? "" : "; ") + reason.sentence;
    if (!verdict.is_fit())
      sentences.emplace(verdict.host, fmt::format("host {} is not fit: {}", verdict.host, why));
  }
  return sentences;
}

Result<Preflight> run_preflight(Env& env, std::vector<LaunchHost> hosts, const std::string& config,
                                const std::vector<std::string>& overrides, double seconds,
                                const std::function<bool()>& is_stopped) {
  HF_TRY_VOID(outcome_of(read_host_book(env)));  // before hosts are asked for nothing
  if (!config.empty()) {
    HF_TRY(const std::vector<Override> parsed, parse_overrides(overrides));
    HF_TRY_VOID(outcome_of(load_config(env, config, parsed)));
  }
  if (hosts.empty()) hosts.push_back({.name = env.host_name()});
  const TrialQuestion question{.milliseconds = static_cast<std::int64_t>(seconds * 1000.0),
                               .directory = working_directory(),
                               .config = config,
                               .overrides = overrides};
  const auto words = [&](std::size_t index) {
    TrialQuestion of_host = question;
    of_host.place = static_cast<std::int64_t>(index);
    of_host.ranks = hosts[index].slots;
    return line_on_host(env, {program_path(), "preflight", "--on-host", record_to_text(of_host)});
  };
  const std::int64_t asked_us = env.wall_time_us();
  const std::int64_t until_ns = env.monotonic_ns() + (2 * question.milliseconds + reserve_ms) * 1'000'000;
  const auto has_stopped = [&] { return is_stopped && is_stopped(); };
  const auto left_ms = [&] { return has_stopped() ? 0 : (until_ns - env.monotonic_ns()) / 1'000'000; };
  const std::vector<HostAnswer> answers = ask_hosts(env, hosts, words, left_ms, /*here_too=*/true, nullptr);
  if (has_stopped()) return fail(ExitCode::communication, "the preflight was stopped");
  Preflight preflight;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    TriedHost host{.name = hosts[i].name,
                   .trials = answers[i].code == 0 ? find_trials(answers[i].output) : std::nullopt,
                   .asked_us = asked_us,
                   .answered_us = asked_us + answers[i].ended_after_ms * 1000};
    if (!host.trials.has_value()) host.silence = silence_of(answers[i]);
    preflight.hosts.push_back(std::move(host));
  }
  const bool links_fail = !try_links_of(env, hosts, preflight, has_stopped);
  if (has_stopped()) return fail(ExitCode::communication, "the preflight was stopped");
  HF_TRY_VOID(change_host_book(env, [&](HostBook& known) -> Result<void> {
    preflight.verdicts = judge_hosts(preflight.hosts, known, build_version(), program_digest(env));
    judge_links(preflight.links, known, preflight.verdicts);
    for (std::size_t i = 0; links_fail && i < hosts.size(); ++i) {
      if (preflight.hosts[i].trials.has_value())
        preflight.verdicts[i].reasons.push_back(
            {.rule = "links",
             .sentence =
                 "mpirun does not let it and the others exchange messages: " + preflight.links_trouble});
    }
    note_verdicts(known, preflight.hosts, preflight.verdicts, preflight.links, env.wall_time_us());
    return {};
  }));
  return preflight;
}

std::string to_text(const Preflight& preflight) {
  std::string text =
      fmt::format("{:<16} {:<8} {:>12} {:>9} {:>9} {:>11} {:>11} {:>9} {:>7}\n", "host", "", "tokens/s",
                  "of fleet", "of usual", "write MB/s", "read MB/s", "sync ms", "hot C");
  std::string reasons;
  for (std::size_t i = 0; i < preflight.hosts.size(); ++i) {
    const TriedHost& host = preflight.hosts[i];
    const HostVerdict& verdict = preflight.verdicts[i];
    const char* const state = verdict.is_fit() ? "fit" : "not fit";
    for (const PreflightReason& reason : verdict.reasons)
      reasons += fmt::format("{}: {}\n", host.name, printable(reason.sentence));
    if (!host.trials.has_value()) {
      text += fmt::format("{:<16} {:<8}\n", host.name, state);
      continue;
    }
    const HostTrials& trials = *host.trials;
    for (std::size_t at = 0; at < trials.devices.size(); ++at) {
      const std::string heat = trials.hottest_C.has_value() ? fmt::format("{:.0f}", *trials.hottest_C) : "-";
      text += fmt::format("{:<16} {:<8} {:>12.0f} {:>9} {:>9} {:>11.0f} {:>11.0f} {:>9.2f} {:>7}\n",
                          at == 0 ? host.name : "", at == 0 ? state : "", trials.devices[at].tokens_per_s,
                          share(verdict.of_fleet[at]), share(verdict.of_usual[at]),
                          trials.disk.write_MB_per_s, trials.disk.read_MB_per_s, trials.disk.sync_ms, heat);
    }
  }
  return text + text_of_links(preflight) + reasons;
}

int run_preflight_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", preflight_usage);
    return 0;
  }
  if (arguments == std::vector<std::string>{"--on-rank"}) return try_links_as_rank(posix_env());
  const bool is_asked = !arguments.empty() && arguments.front() == "--on-host";
  const Result<int> code =
      is_asked ? try_this_host(posix_env(), arguments) : preflight(posix_env(), arguments);
  return code.ok() ? *code : complain(code.error());
}

}  // namespace holdfast::cli
