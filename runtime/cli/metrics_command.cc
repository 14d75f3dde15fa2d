// holdfast metrics: the metrics of a run, as its log says. holdfast events: its events, for people and programs, also while it goes on.
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/metrics/metrics_book.h"
#include "runtime/metrics/metrics_server.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/hardware_record.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_directory.h"

namespace holdfast::cli {
namespace {

constexpr std::int64_t look_us = 300'000;  // between two looks at a log that grows

constexpr const char* metrics_usage =
    "usage: holdfast metrics RUN [--token]\n"
    "\n"
    "Prints the metrics of the run in RUN as OpenMetrics text: what RUN/metrics.prom has while the run goes "
    "on (docs/metrics.md), made "
    "from its\n"
    "log. The run may go on, have ended or have died.\n"
    "\n"
    "  --token  print the token that a scraper needs where metrics.listen is not on a loopback address\n";

constexpr const char* events_usage =
    "usage: holdfast events RUN [--follow] [--kind KIND] [--json | --csv]\n"
    "\n"
    "Prints the events of the run in RUN (docs/events.md), the oldest first.\n"
    "\n"
    "  --follow     go on with those that come, until the run has finished or was saved, or Ctrl-C\n"
    "  --kind KIND  of one kind alone, such as step or fault\n"
    "  --json       the lines of the log\n"
    "  --csv        a table with a column for each field; needs --kind\n";

Result<void> print_metrics(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("metrics", words, {"RUN"}, {}, {"token"}));
  Env& env = posix_env();
  const RunPaths paths{arguments.positional(0)};
  HF_TRY_VOID(expect_run_directory(env, paths));
  if (arguments.has("token")) {
    HF_TRY(const std::string token, metrics_token(env, paths));
    fmt::print("{}\n", token);
    return finish_output();
  }
  HF_TRY(const LogReader log, LogReader::open(env, paths));
  MetricsBook book;
  HF_TRY_VOID(log.for_each([&](const Json& event) { book.take(event); }));
  fmt::print("{}", book.text());
  return finish_output();
}

// Prints events in one of three forms.
class EventPrinter {
 public:
  enum class Form { text, json, csv };
  EventPrinter(Form form, std::string kind) : form_(form), kind_(std::move(kind)) {
    for (const EventKind& each : event_schema()) {
      if (each.name == kind_) fields_ = each.fields;
    }
    if (form_ != Form::csv) return;
    std::string header = "time_us";
    for (const EventField& field : fields_) header += fmt::format(",{}", field.name);
    fmt::print("{}\n", header);
  }

  void print(std::string_view lines) {
    for_each_event(lines, [&](const Json& event) {
      if (!kind_.empty() && event_kind(event) != kind_) return;
      if (form_ == Form::json) fmt::print("{}\n", event.dump_any());
      if (form_ == Form::csv) print_row(event);
      if (form_ == Form::text) print_text(event);
    });
  }

 private:
  void print_row(const Json& event) const {
    std::string row = std::to_string(event_time(event));
    for (const EventField& field : fields_) row += fmt::format(",{}", cell_of(event, field));
    fmt::print("{}\n", row);
  }
  // Quotes what has commas, as RFC 4180 has it; a field that is not there is empty.
  static std::string cell_of(const Json& event, const EventField& field) {
    const auto found = event.find(field.name);
    if (found == event.end() || found->is_null()) return "";
    const std::string text = found->is_string() ? std::string(found->text()) : found->dump_any();
    if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
    std::string quoted = "\"";
    for (const char letter : text) quoted += letter == '"' ? std::string("\"\"") : std::string(1, letter);
    return quoted + "\"";
  }
  static void print_text(const Json& event) {
    std::string details;
    for (const JsonMember& member : event.items()) {
      if (member.key == event_kind_field || member.key == event_time_field) continue;
      details +=
          fmt::format("  {} {}", member.key,
                      member.value.is_string() ? std::string(member.value.text()) : member.value.dump_any());
    }
    fmt::print("{}  {:<12}{}\n", time_text(event_time(event)), event_kind(event), printable(details));
  }

  Form form_;
  std::string kind_;
  std::vector<EventField> fields_;
};

// Notes in `finished` whether the run is over with these lines: a start that failed, or ended for another one, may be followed by one.
void note_end(std::string_view lines, bool& finished) {
  for_each_event(lines, [&](const Json& event) {
    if (event_kind(event) == StartEvent::kind) finished = false;
    if (const auto finish = event_as<FinishEvent>(event))
      finished = finish->state != FinishEvent::failed && finish->reason != another_start_reason;
  });
}

Result<void> print_events(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments,
         Arguments::parse("events", words, {"RUN"}, {"kind"}, {"follow", "json", "csv"}));
  Env& env = posix_env();
  const RunPaths paths{arguments.positional(0)};
  HF_TRY_VOID(expect_run_directory(env, paths));
  if (arguments.has("json") && arguments.has("csv"))
    return fail(ExitCode::config, "events prints --json or --csv, not both");
  std::vector<std::string_view> kinds;
  const std::vector<EventKind> schema = event_schema();
  for (const EventKind& each : schema) kinds.push_back(each.name);
  if (arguments.has("kind")) HF_TRY_VOID(outcome_of(arguments.choice("kind", kinds)));
  if (arguments.has("csv") && !arguments.has("kind"))
    return fail(
        ExitCode::config,
        "events --csv has the columns of one kind; add --kind step, or another one of docs/events.md");
  EventPrinter printer(arguments.has("json")  ? EventPrinter::Form::json
                       : arguments.has("csv") ? EventPrinter::Form::csv
                                              : EventPrinter::Form::text,
                       arguments.text("kind", ""));
  LogFollower log(env, paths);
  bool finished = false;
  while (true) {
    HF_TRY_VOID(log.read_new([&](std::string_view lines) {
      printer.print(lines);
      note_end(lines, finished);
    }));
    HF_TRY_VOID(finish_output());
    if (!arguments.has("follow") || finished) return {};
    env.sleep_us(look_us);
  }
}

int run(const std::vector<std::string>& words, const char* usage,
        Result<void> (*print)(const std::vector<std::string>&)) {
  if (wants_help(words)) {
    fmt::print("{}", usage);
    return 0;
  }
  const Result<void> outcome = print(words);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace

int run_metrics_command(const std::vector<std::string>& arguments) {
  return run(arguments, metrics_usage, print_metrics);
}

int run_events_command(const std::vector<std::string>& arguments) {
  return run(arguments, events_usage, print_events);
}

}  // namespace holdfast::cli
