// holdfast stragglers: prints which ranks of a run compute more slowly than the others.
#include <fmt/core.h>

#include <string>
#include <vector>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/health/straggler_log.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_directory.h"

namespace holdfast::cli {
namespace {

constexpr const char* stragglers_usage =
    "usage: holdfast stragglers RUN [--json]\n"
    "\n"
    "Says which ranks of the run directory RUN compute more slowly than the ranks that do the same, since "
    "which step,\n"
    "in which part of the step, and how long the others have waited for them; then where each rank spends "
    "the "
    "time of\n"
    "a step. It reads what the run writes, and disturbs nothing; the run may go on, have ended or have "
    "died.\n"
    "\n"
    "  --json  one JSON object, for programs (docs/stragglers.md has its members)\n";

Result<void> stragglers(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("stragglers", words, {"RUN"}, {}, {"json"}));
  Env& env = posix_env();
  const RunPaths paths{arguments.positional(0)};
  HF_TRY_VOID(expect_run_directory(env, paths));
  StragglerLog log;
  if (const Result<LogReader> reader = LogReader::open(env, paths); reader.ok())
    HF_TRY_VOID(reader->for_each([&](const Json& event) { log.take(event); }));
  const std::vector<RankTimesEpoch> epochs = read_rank_times(env, paths.rank_times());
  if (epochs.empty() && log.found.empty()) {
    return fail(
        ExitCode::config,
        "{} has no times of its ranks: expected a run of two ranks or more, with health.preset = "
        "\"watch\" and on processors, that has trained for a second or longer; the rates of its steps "
        "are in its report",
        paths.directory);
  }
  fmt::print(
      "{}", arguments.has("json") ? to_json(log, epochs).dump_any() + "\n" : printable(to_text(log, epochs)));
  return finish_output();
}

}  // namespace

int run_stragglers_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", stragglers_usage);
    return 0;
  }
  const Result<void> outcome = stragglers(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
