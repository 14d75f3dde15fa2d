#include <fmt/core.h>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/os/foreign_text.h"
#include "runtime/report/timeline_output.h"

namespace holdfast::cli {
namespace {

constexpr const char* timeline_usage =
    "usage: holdfast timeline RUN [--steps A..B] [--trace FILE.json]\n"
    "\n"
    "Says where the time of recorded steps went: what every rank computed and waited for, and the bubble of "
    "the\n"
    "pipeline beside the formula of its schedule. --trace writes a file that ui.perfetto.dev and\n"
    "chrome://tracing open and show as a picture. --steps takes some of the steps.\n"
    "\n"
    "A run records its steps when it is told to: holdfast train RUN.toml --trace.steps=3 "
    "[--trace.first_step=10].\n"
    "docs/timeline.md explains the numbers and the trace.\n";

Result<void> timeline(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("timeline", words, {"RUN"}, {"steps", "trace"}));
  Env& env = posix_env();
  const RunPaths paths{.directory = arguments.positional(0)};
  StepRange range;
  if (arguments.has("steps")) {
    HF_TRY(range, parse_step_range(arguments.text("steps", "")));
  }
  HF_TRY(Timeline merged, read_timeline(env, paths));
  if (arguments.has("steps")) {
    HF_TRY(merged, select_steps(std::move(merged), range));
  }
  fmt::print("{}", printable(timeline_summary(merged, analyse(merged))));
  if (!arguments.has("trace")) return {};
  const std::string path = arguments.text("trace", "");
  if (path.empty()) return fail(ExitCode::config, "--trace is empty: name the file to write");
  if (const Result<void> written = env.replace_text(path, chrome_trace(merged)); !written.ok())
    return fail(ExitCode::config, "{}", written.error().message);
  fmt::print("{}\n", path);
  return {};
}

}  // namespace

int run_timeline_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", timeline_usage);
    return 0;
  }
  const Result<void> outcome = timeline(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
