#include <fmt/core.h>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/os/foreign_text.h"
#include "watchdog/flight_merge.h"

namespace holdfast::cli {
namespace {

constexpr const char* flight_usage =
    "usage: holdfast flight RUN\n"
    "\n"
    "Puts the newest flight records of all ranks together: what each was at, what it waited for, the first "
    "operation\n"
    "that some had begun and others had not, and who probably was the cause. RUN is a run directory, or one "
    "with\n"
    "flight records.\n"
    "\n"
    "The guard of a host writes them into RUN/flight when a rank hangs or dies, and when it gets SIGUSR1. "
    "docs/watchdog.md.\n";

Result<void> flight(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("flight", words, {"RUN"}, {}));
  HF_TRY(const std::vector<FlightRecord> records, read_flight_records(posix_env(), arguments.positional(0)));
  fmt::print("{}", printable(flight_text(records)));
  return {};
}

}  // namespace

int run_flight_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", flight_usage);
    return 0;
  }
  const Result<void> outcome = flight(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
