#include <fmt/core.h>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/os/foreign_text.h"
#include "runtime/report/report_page.h"
#include "runtime/timeline/pictures.h"

namespace holdfast::inline cli {
namespace {

constexpr const char* timeline_usage =
    "usage: holdfast timeline RUN [--steps A..B] [--trace FILE.json] [--html FILE.html]\n"
    "\n"
    "Says where the time of recorded steps went: what every rank computed and waited for, and the bubble of "
    "the\n"
    "pipeline beside the formula of its schedule. --html writes a picture of the pipeline, one "
    "self-contained\n"
    "page; --trace a file that ui.perfetto.dev and chrome://tracing open. --steps takes some of the steps.\n"
    "\n"
    "A run records its steps when it is told to: holdfast train RUN.toml --trace.steps=3 "
    "[--trace.first_step=10].\n"
    "docs/timeline.md explains the picture and the numbers.\n";

Result<void> timeline(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("timeline", words, {"RUN"}, {"steps", "trace", "html"}));
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
  const std::vector<PipelineTimes> pipelines = analyse(merged);
  fmt::print("{}", printable(timeline_summary(merged, pipelines)));
  const auto write = [&](const char* option, const std::string& text) -> Result<void> {
    const std::string path = arguments.text(option, "");
    if (path.empty()) return fail(ExitCode::config, "--{} is empty: name the file to write", option);
    if (const Result<void> written = env.replace_text(path, text); !written.ok())
      return fail(ExitCode::config, "{}", written.error().message);
    fmt::print("{}\n", path);
    return {};
  };
  if (arguments.has("trace")) HF_TRY_VOID(write("trace", chrome_trace(merged)));
  if (!arguments.has("html")) return {};
  return write("html", timeline_page(run_name(paths.directory), merged, pipelines));
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

}  // namespace holdfast::inline cli
