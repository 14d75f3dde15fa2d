#include "runtime/report/report_bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/config/document.h"
#include "runtime/core/units.h"
#include "runtime/os/foreign_text.h"
#include "runtime/report/incident_page.h"
#include "runtime/report/report.h"
#include "runtime/run/run_history.h"

namespace holdfast::report {
namespace {

constexpr std::uint64_t log_max = std::uint64_t{256} << 20;  // the newest bytes of the event log
constexpr std::uint64_t file_max = std::uint64_t{64} << 20;  // of any other file
constexpr std::size_t incidents_max = 20;                    // pages, of the last ones

// Bundle writes files, and remembers what it wrote and what it left out.
class Bundle {
 public:
  Bundle(Env& env, std::string directory) : env_(env), directory_(std::move(directory)) {}

  Result<void> add(const std::string& name, const std::string& text) {
    HF_TRY_VOID(env_.replace_text(directory_ + "/" + name, text));
    ++files_;
    bytes_ += text.size();
    return {};
  }

  // Copies a file if it is there.
  Result<void> copy(const std::string& name, const std::string& source) {
    const Result<FileStatus> status = env_.status(source);
    if (!status.ok() || !status->exists) return {};
    const Result<std::string> text = read_text_within(env_, source, file_max);
    if (text.ok()) return add(name, *text);
    leave_out(name, text.error().message);
    return {};
  }

  void leave_out(const std::string& name, const std::string& why) {
    left_out_ += fmt::format("{}: {}\n", name, why);
  }

  const std::string& left_out() const { return left_out_; }
  std::string summary() const {
    return fmt::format("{} files, {}, in {}", files_, format_bytes(bytes_), directory_);
  }

 private:
  Env& env_;
  std::string directory_;
  std::size_t files_ = 0;
  std::uint64_t bytes_ = 0;
  std::string left_out_;
};

// Cuts out of a text what commands of users printed, up to `end`: they may print what they were given.
std::string without_printed(std::string text, char end) {
  constexpr std::string_view mark = "it printed: ";
  for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at)) {
    at += mark.size();
    std::size_t stop = at;
    while (stop < text.size() && text[stop] != end && text[stop] != '\n') stop += text[stop] == '\\' ? 2 : 1;
    text.replace(at, std::min(stop, text.size()) - at, "(left out)");
  }
  return text;
}
constexpr char end_in_json = '"', end_in_html = '<';

Result<void> add_log(Env& env, const RunPaths& paths, Bundle& bundle) {
  HF_TRY(LogTail tail, read_log_tail(env, paths, log_max));
  return bundle.add("events.jsonl", without_printed(std::move(tail.lines), end_in_json));
}

Result<void> add_flights(Env& env, const RunPaths& paths, const std::string& directory, Bundle& bundle) {
  const std::string place = paths.directory + "/flight";
  const Result<std::vector<std::string>> names = env.list(place);
  if (!names.ok() || names->empty()) return {};
  HF_TRY_VOID(env.make_directories(directory + "/flight"));
  for (const std::string& name : *names) HF_TRY_VOID(bundle.copy("flight/" + name, place + "/" + name));
  return {};
}

Result<void> add_pages(Env& env, const RunPaths& paths, Bundle& bundle) {
  HF_TRY(const Report report, make_report(env, paths));
  HF_TRY_VOID(bundle.add("report.html", without_printed(report.page, end_in_html)));
  HF_TRY(const IncidentLog log, read_incident_log(env, paths));
  const std::size_t count = log.faults.size();
  for (std::size_t number = count - std::min(count, incidents_max) + 1; number <= count; ++number) {
    const std::string name = fmt::format("incident-{}.html", number);
    const Result<Incident> incident = read_incident(env, paths, number);
    if (!incident.ok()) {
      bundle.leave_out(name, incident.error().message);
      continue;
    }
    const std::vector<FlightRecord> flights = flight_records_near(env, paths.directory, incident->begin_us);
    HF_TRY_VOID(
        bundle.add(name, without_printed(incident_page(paths.directory, *incident, flights), end_in_html)));
  }
  return {};
}

Result<void> fill(Env& env, const RunPaths& paths, const std::string& directory, const std::string& program,
                  Bundle& bundle) {
  HF_TRY_VOID(add_log(env, paths, bundle));
  const std::string config = text_within_or_empty(env, paths.config(), text_limits::config);
  if (!config.empty()) HF_TRY_VOID(bundle.add("config.toml", without_commands(config)));
  for (const std::string& path : {paths.status(), paths.history(), paths.hardware(), paths.rank_times(),
                                  paths.metrics(), paths.directory + "/lineage.json"})
    HF_TRY_VOID(bundle.copy(path.substr(paths.directory.size() + 1), path));
  HF_TRY_VOID(add_flights(env, paths, directory, bundle));
  HF_TRY_VOID(add_pages(env, paths, bundle));
  return bundle.add(
      "ABOUT.txt",
      fmt::format(
          "What the run in {} on host {} recorded about itself.\nprogram: {}\nNot in it: weights, data, "
          "commands of the config and what they printed, the secret of the run.\n{}",
          paths.directory, env.host_name(), program, bundle.left_out()));
}

}  // namespace

Result<std::string> write_bundle(Env& env, const RunPaths& paths, const std::string& directory,
                                 const std::string& program) {
  HF_TRY_VOID(expect_run_directory(env, paths));
  HF_TRY(const FileStatus there, env.status(directory));
  if (there.exists)
    return fail(ExitCode::config, "--bundle {} is there already: give the name of a new directory",
                directory);
  if (const Result<void> made = env.make_directories(directory); !made.ok())
    return fail(ExitCode::config, "--bundle: {}", made.error().message);
  Bundle bundle(env, directory);
  if (const Result<void> filled = fill(env, paths, directory, program, bundle); !filled.ok()) {
    static_cast<void>(env.remove_tree(directory).ok());
    return filled.error();
  }
  return bundle.summary();
}

}  // namespace holdfast::report
