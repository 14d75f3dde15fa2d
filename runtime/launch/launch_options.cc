#include "runtime/launch/launch_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>
#include <string_view>
#include <utility>

#include "runtime/core/text.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::launch {
namespace {

constexpr std::array<std::string_view, 7> names_with_value = {"np",   "hostfile", "host-command",  "host",
                                                              "tune", "notice",   "wait-for-hosts"};
constexpr std::int64_t longest_notice_s = 86'400, longest_wait_s = 2'592'000;

Result<std::int64_t> whole_number(std::string_view name, const std::string& text, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most) {
    return fail(ExitCode::config, "launch: {} must be a whole number of 1 to {}, got \"{}\"", name, most,
                text);
  }
  return value;
}

// Parses N, or MIN:MAX.
Result<void> set_ranks(LaunchOptions& options, const std::string& value) {
  constexpr std::int64_t max_ranks = 1'000'000;
  const std::size_t colon = value.find(':');
  if (colon != std::string::npos) {
    HF_TRY(const std::int64_t least, whole_number("MIN of -np MIN:MAX", value.substr(0, colon), max_ranks));
    options.min_ranks = static_cast<int>(least);
  }
  const std::string most = colon == std::string::npos ? value : value.substr(colon + 1);
  HF_TRY(const std::int64_t ranks,
         whole_number(colon == std::string::npos ? "-np" : "MAX of -np MIN:MAX", most, max_ranks));
  options.ranks = static_cast<int>(ranks);
  if (options.min_ranks > options.ranks) {
    return fail(ExitCode::config, "launch: -np {} asks for more ranks at least than at most; give MIN:MAX",
                value);
  }
  return {};
}

Result<void> set_option(LaunchOptions& options, std::string_view name, const std::string& value) {
  if (name == "np") HF_TRY_VOID(set_ranks(options, value));
  if (name == "notice") {
    HF_TRY(const std::int64_t seconds, whole_number("--notice (seconds)", value, longest_notice_s));
    options.notice_ms = seconds * 1000;
  }
  if (name == "wait-for-hosts") {
    HF_TRY(const std::int64_t seconds, whole_number("--wait-for-hosts (seconds)", value, longest_wait_s));
    options.wait_for_hosts_ms = seconds * 1000;
  }
  if (name == "hostfile") options.hostfile = value;
  if (name == "host-command") options.host_command = value;
  if (name == "host") options.hosts = value;
  if (name == "tune") options.tune = value;
  return {};
}

// Returns the name of an option, which may be written as for mpirun ("-np", "--np", "-n"); "" if the word is
// no option of launch with a value.
std::string_view option_name(std::string_view word) {
  if (word == "-n") return "np";
  if (!word.starts_with('-')) return "";
  word.remove_prefix(word.starts_with("--") ? 2 : 1);
  const auto found = std::ranges::find(names_with_value, word.substr(0, word.find('=')));
  return found == names_with_value.end() ? std::string_view() : *found;
}

Error unknown_option(std::string_view word) {
  const std::string name(word.substr(0, word.find('=')));
  std::vector<std::string_view> known = {"dry-run", "drill", "faults", "preflight"};
  known.insert(known.end(), names_with_value.begin(), names_with_value.end());
  const std::string near = closest(name.substr(std::min(name.find_first_not_of('-'), name.size())), known);
  return fail(ExitCode::config, "launch has no option {}{}; holdfast launch --help lists them", name,
              near.empty() ? "" : fmt::format(", did you mean --{}?", near));
}

Result<void> check(const LaunchOptions& options) {
  if (options.config.empty()) {
    return fail(ExitCode::config,
                "launch needs RUN.toml, the config of the run; holdfast launch --help says how it is used");
  }
  if (options.ranks == 0) {
    return fail(ExitCode::config, "launch needs -np N, how many ranks the run has on all hosts together");
  }
  const std::array<std::pair<const char*, bool>, 3> sources = {
      {{"--host", !options.hosts.empty()},
       {"--hostfile", !options.hostfile.empty()},
       {"--host-command", !options.host_command.empty()}}};
  std::vector<const char*> given;
  for (const auto& [name, is_given] : sources) {
    if (is_given) given.push_back(name);
  }
  if (given.size() > 1) {
    return fail(ExitCode::config, "launch: {} and {} both say where the ranks run; give one of them",
                given[0], given[1]);
  }
  return {};
}

}  // namespace

Result<LaunchOptions> parse_launch_options(const std::vector<std::string>& words) {
  LaunchOptions options;
  std::vector<std::string_view> given;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const std::string_view name = option_name(word);
    const std::size_t equals = word.find('=');
    if (!name.empty()) {
      if (std::ranges::find(given, name) != given.end()) {
        return fail(ExitCode::config, "launch: {} is given twice; give it once", word.substr(0, equals));
      }
      given.push_back(name);
      if (equals == std::string::npos && i + 1 == words.size()) {
        return fail(ExitCode::config, "launch: {} has no value", word);
      }
      HF_TRY_VOID(
          set_option(options, name, equals == std::string::npos ? words[++i] : word.substr(equals + 1)));
    } else if (word == "--dry-run") {
      options.dry_run = true;
    } else if (word == "--faults") {
      options.faults = true;
    } else if (word == "--drill") {
      options.drill = true;
    } else if (word == "--preflight") {
      options.preflight = true;
    } else if (word.starts_with("--") && word.substr(0, equals).find('.') != std::string::npos) {
      options.overrides.push_back(word);
    } else if (word.starts_with("--") && equals != std::string::npos && !options.config.empty()) {
      options.overrides.push_back(word);  // a key without a section (--threads=2)
    } else if (word.starts_with('-')) {
      return unknown_option(word);
    } else if (options.config.empty()) {
      options.config = word;
    } else {
      return fail(ExitCode::config, "launch takes RUN.toml and options, got also \"{}\"", word);
    }
  }
  HF_TRY_VOID(check(options));
  return options;
}

Result<void> check_faults_meant(Env& env, const LaunchOptions& options) {
  const std::string faults = env.variable("HOLDFAST_FAULTS");
  if (options.faults || faults.empty()) return {};
  return fail(ExitCode::config,
              "launch: HOLDFAST_FAULTS is set, so the ranks would make these faults: {}. Unset it, or give "
              "--faults if that is meant",
              printable(faults));
}

std::vector<LaunchHost> hosts_of_file(const std::string& text) {
  std::vector<LaunchHost> hosts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    LaunchHost host;
    if (!(words >> host.name)) continue;
    for (std::string word; words >> word;) {
      if (word.starts_with("slots=")) std::from_chars(word.data() + 6, word.data() + word.size(), host.slots);
    }
    const auto known = std::ranges::find(hosts, host.name, &LaunchHost::name);
    if (known == hosts.end()) {
      hosts.push_back(host);
    } else {
      known->slots += host.slots;
    }
  }
  return hosts;
}

std::vector<LaunchHost> hosts_of_list(const std::string& list) {
  std::vector<LaunchHost> hosts;
  for (const std::string& entry : split_list(list)) {
    const std::size_t colon = entry.find(':');
    LaunchHost host{.name = entry.substr(0, colon), .slots = 1};
    if (colon != std::string::npos) {
      std::from_chars(entry.data() + colon + 1, entry.data() + entry.size(), host.slots);
    }
    const auto known = std::ranges::find(hosts, host.name, &LaunchHost::name);
    if (known == hosts.end()) {
      hosts.push_back(host);
    } else {
      known->slots += host.slots;
    }
  }
  return hosts;
}

Result<void> check_host_name(const std::string& name, const std::string& source) {
  if (may_be_host_name(name)) return {};
  return fail(
      ExitCode::config,
      "{} names \"{}\", which cannot be the name of a host: those are of letters, digits and - . _ : [ ] %, "
      "and do not begin with -",
      source, printable(name));
}

Result<void> check_host_names(const std::vector<LaunchHost>& hosts, const std::string& source) {
  for (const LaunchHost& host : hosts) HF_TRY_VOID(check_host_name(host.name, source));
  return {};
}

namespace {

// Returns the slots that each host of the LIST has, in its order.
std::vector<std::pair<std::string, int>> slots_of_hosts_left(const std::vector<LaunchHost>& hosts, int ranks,
                                                             int group) {
  int needed = ranks;
  const auto left = static_cast<int>(std::ranges::count(hosts, true, &LaunchHost::answers));
  std::vector<std::pair<std::string, int>> list;
  for (const LaunchHost& host : hosts) {
    if (!host.answers || needed <= 0 || (host.slots > 0 && host.slots < group)) continue;
    int slots = host.slots > 0 ? host.slots : (ranks + left - 1) / left;
    slots -= host.slots > 0 ? slots % group : 0;
    needed -= slots;
    list.emplace_back(host.name, slots);
  }
  return list;
}

}  // namespace

std::string list_of_hosts_left(const std::vector<LaunchHost>& hosts, int ranks, int group) {
  std::string list;
  for (const auto& [host, slots] : slots_of_hosts_left(hosts, ranks, group))
    list += fmt::format("{}{}:{}", list.empty() ? "" : ",", host, slots);
  return list;
}

std::map<std::string, int> ranks_by_host(const std::vector<LaunchHost>& hosts, int ranks, int group) {
  std::map<std::string, int> given;
  for (const auto& [host, slots] : slots_of_hosts_left(hosts, ranks, group)) {
    given[host] = std::min(slots, ranks);
    ranks -= given[host];
  }
  return given;
}

}  // namespace holdfast::launch
