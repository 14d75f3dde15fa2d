#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "runtime/os/foreign_text.h"
#include "runtime/report/incident_page.h"
#include "runtime/report/report.h"
#include "runtime/report/report_bundle.h"

namespace holdfast::cli {
namespace {

constexpr const char* report_usage =
    "usage: holdfast report RUN [--incident N | --bundle DIR]\n"
    "       holdfast report --playbook\n"
    "\n"
    "Writes RUN/report.html from the events of the run directory RUN: one self-contained page with the "
    "curves, also while\n"
    "the run goes on.\n"
    "\n"
    "  --incident N   write RUN/incident-N.html instead: what each rank was at, who and why, what was "
    "decided, what it\n"
    "                 cost, what would have been cheaper, and what to do. N is the number in the report's "
    "table of\n"
    "                 faults, or `last`\n"
    "  --bundle DIR   write a new directory DIR with all that the run recorded about itself, to send to "
    "somebody:\n"
    "                 without weights, data, the commands of the config or secrets\n"
    "  --playbook     docs/playbook.md: what each kind of incident means, and what to do\n";

Result<void> report_incident(const RunPaths& paths, const Arguments& arguments) {
  Env& env = posix_env();
  std::size_t number = 0;
  if (arguments.text("incident", "") == "last") {
    HF_TRY(const IncidentLog log, read_incident_log(env, paths));
    number = std::max<std::size_t>(log.faults.size(), 1);
  } else {
    HF_TRY(const std::int64_t given, arguments.integer("incident", 1, 1));
    number = static_cast<std::size_t>(given);
  }
  HF_TRY(const Incident incident, read_incident(env, paths, number));
  const std::string page = fmt::format("{}/incident-{}.html", paths.directory, number);
  HF_TRY_VOID(
      env.replace_text(page, incident_page(paths.directory, incident,
                                           flight_records_near(env, paths.directory, incident.begin_us))));
  fmt::print("{}\n{}", page, printable(incident_text(incident)));
  return {};
}

Result<void> report(const std::vector<std::string>& words) {
  if (words == std::vector<std::string>{"--playbook"}) {
    fmt::print("{}", playbook_page());
    return {};
  }
  HF_TRY(const Arguments arguments, Arguments::parse("report", words, {"RUN"}, {"incident", "bundle"}));
  const RunPaths paths{.directory = arguments.positional(0)};
  if (arguments.has("incident") && arguments.has("bundle"))
    return fail(ExitCode::config, "report: --incident and --bundle are two things; give one of them");
  if (arguments.has("incident")) return report_incident(paths, arguments);
  if (arguments.has("bundle")) {
    HF_TRY(const std::string summary,
           write_bundle(posix_env(), paths, arguments.text("bundle", ""),
                        fmt::format("{}, {}", build_version(), program_digest(posix_env()))));
    fmt::print("{}\n", summary);
    return {};
  }
  HF_TRY(const std::string summary, write_report(posix_env(), paths));
  fmt::print("{}\n", paths.report());
  if (!summary.empty()) fmt::print("{}\n", summary);
  return {};
}

}  // namespace

int run_report_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", report_usage);
    return 0;
  }
  const Result<void> outcome = report(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
