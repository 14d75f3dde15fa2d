// holdfast health: what this host's sensors, counters and logs say, judged by the rules; records and replays them.
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/host_trial.h"
#include "runtime/config/loader.h"
#include "runtime/core/json.h"
#include "runtime/health/health_judge.h"
#include "runtime/health/host_sources.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::cli {
namespace {

constexpr const char* health_usage =
    "usage: holdfast health [RUN.toml] [--seconds N] [--every S] [--record FILE] [--disk PATH] [--json]\n"
    "       holdfast health [RUN.toml] --replay FILE [--json]\n"
    "       holdfast health --rules\n"
    "\n"
    "Says what this host's sensors, counters and logs tell about its GPUs, links, memory and disks, and what "
    "the rules of\n"
    "docs/health.md find in it. It changes nothing, and needs no rights; what it cannot read it names. With "
    "RUN.toml the\n"
    "rules and places are those of the run: health.rules, health.host_root and health.dcgm_exporter.\n"
    "\n"
    "  --seconds N    go on for N seconds and print what is found when it is found (default: two looks, a "
    "second apart)\n"
    "  --every S      seconds between two looks (default 5)\n"
    "  --record FILE  write what is read into FILE, which must not be there, for --replay and for reports of "
    "errors\n"
    "  --replay FILE  judge a recording instead of this host\n"
    "  --disk PATH    the file system whose room counts (default .)\n"
    "  --rules        docs/health.md: the rules and what a run does about Xids\n"
    "  --json         one JSON object for each finding, on a line of its own\n"
    "\n"
    "Exit code 0: nothing asks for the host to be left; 76: something does; 4: FILE is no recording.\n";

// Prints findings, and knows the worst.
class Findings {
 public:
  explicit Findings(bool as_json) : as_json_(as_json) {}

  void print(const std::vector<HealthFinding>& findings, std::int64_t begin_ms) {
    for (const HealthFinding& finding : findings) {
      worst_ = std::max(worst_, finding.action);
      ++count_;
      if (as_json_) {
        const Json json = {{"rule", finding.rule},
                           {"action", std::string(name_of(finding.action))},
                           {"part", finding.part},
                           {"time_ms", finding.time_ms},
                           {"sentence", finding.sentence}};
        fmt::print("{}\n", json.dump_any());
      } else {
        fmt::print("{:>8.1f} s  {:<9}  {}  ({})\n", static_cast<double>(finding.time_ms - begin_ms) / 1000.0,
                   name_of(finding.action), printable(finding.sentence), finding.rule);
      }
    }
  }
  std::size_t count() const { return count_; }
  int exit_code() const {
    return worst_ >= HealthAction::drain ? static_cast<int>(ExitCode::communication) : 0;
  }

 private:
  bool as_json_;
  HealthAction worst_ = HealthAction::ignore;
  std::size_t count_ = 0;
};

std::string value_text(const HealthReading& reading) {
  if (reading.text.has_value()) return printable(*reading.text);
  return reading.value.has_value() ? fmt::format("{:.6g}", *reading.value) : std::string("no answer");
}

void print_readings(const std::vector<HealthReading>& readings, const HostSources& sources) {
  std::string line, last;
  for (const HealthReading& reading : readings) {
    if (reading.text.has_value()) continue;
    const std::string place = reading.source + (reading.part.empty() ? "" : " " + printable(reading.part));
    if (place != last) line += fmt::format("{}{:<24}", line.empty() ? "" : "\n", place);
    line += fmt::format("  {} {}", reading.name, value_text(reading));
    last = place;
  }
  fmt::print("{}\n", line);
  for (const std::string& missing : sources.missing()) fmt::print("{}\n", printable(missing));
}

// Holds what the run says, where there is one, and else the defaults.
struct HealthTerms {
  std::vector<HealthRule> rules = {health_rules().begin(), health_rules().end()};
  HostSources::Places places = {};
};
Result<HealthTerms> terms_of(Env& env, const std::string& config) {
  HealthTerms terms;
  if (config.empty()) return terms;
  HF_TRY(const LoadedConfig loaded, load_config(env, config, {}));
  const HealthConfig& health = loaded.config.health;
  HF_TRY(terms.rules, changed_rules(health.rules));
  HF_TRY(terms.places.exporter, exporter_address(health.dcgm_exporter));
  terms.places.root = health.host_root;
  return terms;
}

Result<int> watch_host(Env& env, const Arguments& arguments, HealthTerms terms) {
  HF_TRY(const double every_s, arguments.real("every", 5.0, 0.1));
  HF_TRY(const double seconds, arguments.real("seconds", arguments.has("record") ? 1e9 : 0.0, 0.0));
  const std::string path = arguments.text("record", "");
  terms.places.disks = {arguments.text("disk", ".")};
  HostSources sources(env, std::move(terms.places), nvml_reader());
  HealthJudge judge(terms.rules);
  Findings findings(arguments.has("json"));
  if (!path.empty()) {
    HF_TRY(const FileStatus status, env.status(path));
    if (status.exists)
      return fail(ExitCode::config, "{} is there already; a recording needs a new file", path);
    HF_TRY_VOID(env.append_line(
        path, line_of(HealthRecording::Header{.host = env.host_name(),
                                              .label = "recorded",
                                              .interval_ms = static_cast<std::int64_t>(every_s * 1000)})));
  }
  const bool is_short = seconds <= 0.0;
  const std::int64_t begin_ns = env.monotonic_ns(), begin_ms = env.wall_time_us() / 1000;
  for (std::int64_t looks = 1;; ++looks) {
    const std::vector<HealthReading> readings = sources.look();
    if (is_short && looks == 2 && !arguments.has("json")) print_readings(readings, sources);
    for (const HealthReading& reading : readings) {
      if (!path.empty()) HF_TRY_VOID(env.append_line(path, line_of(reading)));
      findings.print(judge.take(reading), begin_ms);
    }
    const double passed_s = static_cast<double>(env.monotonic_ns() - begin_ns) * 1e-9;
    if (is_short ? looks == 2 : passed_s >= seconds) break;
    env.sleep_us(static_cast<std::int64_t>((is_short ? 1.0 : std::min(every_s, seconds - passed_s)) * 1e6));
  }
  if (findings.count() == 0 && !arguments.has("json")) fmt::print("nothing is found\n");
  return findings.exit_code();
}

Result<int> replay(Env& env, const Arguments& arguments, const HealthTerms& terms) {
  HF_TRY(const HealthRecording recording, read_recording(env, arguments.text("replay", "")));
  Findings findings(arguments.has("json"));
  const std::int64_t begin_ms = recording.readings.empty() ? 0 : recording.readings.front().time_ms;
  HealthJudge judge(terms.rules);
  for (const HealthReading& reading : recording.readings) findings.print(judge.take(reading), begin_ms);
  if (!arguments.has("json"))
    fmt::print("{}: {} readings of {}, {}; {} found\n", printable(recording.header.label),
               recording.readings.size(), printable(recording.header.host),
               "judged by the rules of this program", findings.count());
  return findings.exit_code();
}

Result<int> run_as_told(Env& env, std::vector<std::string> words) {
  std::string config;
  if (!words.empty() && !words.front().starts_with('-')) {
    config = words.front();
    words.erase(words.begin());
  }
  HF_TRY(const Arguments arguments,
         Arguments::parse("health", words, {}, {"seconds", "every", "record", "replay", "disk"},
                          {"json", "rules"}));
  if (arguments.has("rules")) {
    fmt::print("{}", health_page());
    return 0;
  }
  HF_TRY(HealthTerms terms, terms_of(env, config));
  if (!arguments.has("replay")) return watch_host(env, arguments, std::move(terms));
  if (arguments.has("record") || arguments.has("seconds"))
    return fail(ExitCode::config,
                "health --replay reads a recording and looks at no host; leave out --record and --seconds");
  return replay(env, arguments, terms);
}

}  // namespace

int run_health_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", health_usage);
    return 0;
  }
  const Result<int> code = run_as_told(posix_env(), arguments);
  return code.ok() ? *code : complain(code.error());
}

}  // namespace holdfast::cli
