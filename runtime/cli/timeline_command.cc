#include <fmt/core.h>

#include <algorithm>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/os/foreign_text.h"
#include "runtime/report/operations_file.h"
#include "runtime/report/timeline_operations.h"
#include "runtime/report/timeline_output.h"

namespace holdfast::cli {
namespace {

constexpr const char* timeline_usage =
    "usage: holdfast timeline RUN [--steps A..B] [--trace FILE.json] [--json]\n"
    "       holdfast timeline --operations FILE.tsv [--json]\n"
    "\n"
    "Says where the time of recorded steps went: what every rank computed and waited for, the bubble of the\n"
    "pipeline beside the formula of its schedule, and the seconds lost to each rank, by replaying the steps\n"
    "without it. --trace writes a file that ui.perfetto.dev and chrome://tracing open and show as a "
    "picture.\n"
    "--steps takes some of the steps.\n"
    "\n"
    "A run records its steps when it is told to: holdfast train RUN.toml --trace.steps=3 "
    "[--trace.first_step=10].\n"
    "--operations replays the steps of another trainer, from a table of what its ranks did and when.\n"
    "docs/timeline.md explains the numbers, the trace and the table.\n"
    "\n"
    "  --json  the seconds lost to each rank alone, as one JSON object, for programs\n";

Result<void> print_what_if(const TracedJob& job, bool as_json) {
  HF_TRY(const WhatIf answer, ask_what_if(job));
  fmt::print("{}", as_json ? what_if_json(job, answer) : what_if_summary(job, answer));
  return {};
}

Result<void> replay_operations(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("timeline", words, {}, {"operations"}, {"json"}));
  const std::string path = arguments.text("operations", "");
  HF_TRY(const std::string text, read_text_within(posix_env(), path, text_limits::trace));
  HF_TRY(std::vector<TracedOperation> operations, parse_operations(text, path));
  HF_TRY(const TracedJob job, job_of(std::move(operations), path));
  return print_what_if(job, arguments.has("json"));
}

Result<void> timeline(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments,
         Arguments::parse("timeline", words, {"RUN"}, {"steps", "trace"}, {"json"}));
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
  if (!arguments.has("json")) fmt::print("{}\n", printable(timeline_summary(merged, analyse(merged))));
  HF_TRY_VOID(print_what_if(job_of(merged), arguments.has("json")));
  if (!arguments.has("trace")) return {};
  const std::string path = arguments.text("trace", "");
  if (path.empty()) return fail(ExitCode::config, "--trace is empty: name the file to write");
  if (const Result<void> written = env.replace_text(path, chrome_trace(merged)); !written.ok())
    return fail(ExitCode::config, "{}", written.error().message);
  if (!arguments.has("json")) fmt::print("{}\n", path);
  return {};
}

bool is_of_operations(const std::vector<std::string>& words) {
  return std::ranges::any_of(words, [](const std::string& word) { return word.starts_with("--operations"); });
}

}  // namespace

int run_timeline_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", timeline_usage);
    return 0;
  }
  const Result<void> outcome =
      is_of_operations(arguments) ? replay_operations(arguments) : timeline(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
