#include <fmt/core.h>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/report/report.h"

namespace holdfast::cli {
namespace {

constexpr const char* report_usage =
    "usage: holdfast report RUN\n"
    "\n"
    "Writes RUN/report.html from the events of the run directory RUN: one self-contained page with the "
    "curves, also while\n"
    "the run goes on.\n";

Result<void> report(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("report", words, {"RUN"}, {}));
  const RunPaths paths{.directory = arguments.positional(0)};
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
