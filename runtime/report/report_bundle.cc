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
#include "runtime/run/event_reading.h"
#include "runtime/run/log_reader.h"
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

// Cuts off what commands of users printed, which an older version has quoted at the end of sentences.
std::string without_printed(std::string sentence) {
  if (const std::size_t at = sentence.find("it printed: "); at != std::string::npos) sentence.resize(at);
  return sentence;
}

// Returns an event without what commands of users printed: they may print what they were given. An older version has quoted
// it in the sentences of faults, which had no cause, and of ends.
Json shareable(const Json& event) {
  const bool is_fault = event_kind(event) == FaultEvent::kind;
  if (event_kind(event) == FinishEvent::kind) {
    Json kept = event;
    kept[field_name(&FinishEvent::reason)] =
        without_printed(text_of(event, field_name(&FinishEvent::reason)));
    return kept;
  }
  if (!is_fault) return event;
  const bool is_old = !event.contains(field_name(&FaultEvent::cause));
  Json kept = Json::object();
  for (const JsonMember& field : event.items()) {
    if (field.key == field_name(&FaultEvent::printed)) continue;
    const bool may_quote = is_old && field.key == field_name(&FaultEvent::reason);
    kept[field.key] = may_quote ? Json("(left out: a sentence of an older version)") : field.value;
  }
  return kept;
}

// Keeps the lines of all other kinds as they are, but for those that are not whole.
std::string shareable_lines(std::string_view lines) {
  std::string kept;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    const Json event = Json::parse_any(line);
    if (!event.is_object()) continue;
    const bool may_quote = event_kind(event) == FaultEvent::kind || event_kind(event) == FinishEvent::kind;
    kept += may_quote ? shareable(event).dump_any() : std::string(line);
    kept += '\n';
  }
  return kept;
}

Result<void> add_log(const LogReader& log, Bundle& bundle) {
  HF_TRY(const LogTail tail, tail_of(log, log_max));
  return bundle.add("events.jsonl", shareable_lines(tail.lines));
}

Result<void> add_flights(Env& env, const RunPaths& paths, const std::string& directory, Bundle& bundle) {
  const std::string place = paths.directory + "/flight";
  const Result<std::vector<std::string>> names = env.list(place);
  if (!names.ok() || names->empty()) return {};
  HF_TRY_VOID(env.make_directories(directory + "/flight"));
  for (const std::string& name : *names) HF_TRY_VOID(bundle.copy("flight/" + name, place + "/" + name));
  return {};
}

Result<void> add_pages(Env& env, const RunPaths& paths, const LogReader& log, Bundle& bundle) {
  HF_TRY(const RunHistory history, read_history(log, shareable));
  const RunStatus status = read_status(env, paths);
  const std::string reason = escape_html(status.reason);
  std::string page = make_report(env, paths, history).page;
  if (const std::size_t at = page.find(reason); at != std::string::npos && !reason.empty())
    page.replace(at, reason.size(), escape_html(without_printed(status.reason)));
  HF_TRY_VOID(bundle.add("report.html", page));
  Json kept = Json::parse_any(env.text_or_empty(paths.status()));
  if (kept.is_object() && kept.contains("reason")) kept["reason"] = without_printed(text_of(kept, "reason"));
  HF_TRY_VOID(bundle.add("status.json", kept.dump_any() + "\n"));
  const std::size_t count = history.ledger.faults.size();
  if (count == 0) return {};
  HF_TRY(const std::vector<Incident> incidents,
         read_incidents(log, history, count - std::min(count, incidents_max) + 1, count));
  for (const Incident& incident : incidents) {
    const std::vector<FlightRecord> flights = flight_records_near(env, paths.directory, incident.begin_us);
    HF_TRY_VOID(bundle.add(fmt::format("incident-{}.html", incident.number),
                           incident_page(paths.directory, incident, flights)));
  }
  return {};
}

Result<void> fill(Env& env, const RunPaths& paths, const std::string& directory, const std::string& program,
                  Bundle& bundle) {
  HF_TRY(const LogReader log, LogReader::open(env, paths));
  HF_TRY_VOID(add_log(log, bundle));
  const std::string config = text_within_or_empty(env, paths.config(), text_limits::config);
  if (!config.empty()) HF_TRY_VOID(bundle.add("config.toml", without_commands(config)));
  for (const std::string& path : {paths.history(), paths.hardware(), paths.rank_times(), paths.metrics(),
                                  paths.directory + "/lineage.json"})
    HF_TRY_VOID(bundle.copy(path.substr(paths.directory.size() + 1), path));
  HF_TRY_VOID(add_flights(env, paths, directory, bundle));
  HF_TRY_VOID(add_pages(env, paths, log, bundle));
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
