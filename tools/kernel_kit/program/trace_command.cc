#include "tools/kernel_kit/program/trace_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/os/console.h"
#include "tools/kernel_kit/trace_capture.h"

namespace holdfast::cli {
namespace {

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

Result<kernel_kit::CaptureTerms> capture_terms(const std::vector<std::string>& words) {
  std::vector<std::string> overrides, others;
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    const bool is_key =
        name.starts_with("--") && (name.find('.') != std::string::npos || name == "--threads");
    (is_key ? overrides : others).push_back(word);
  }
  HF_TRY(const Arguments arguments,
         Arguments::parse("kernel trace", others, {"RUN"}, {"steps", "ops", "calls", "out"}));
  for (const char* const needed : {"steps", "ops"}) {
    if (!arguments.has(needed))
      return fail(ExitCode::config,
                  "kernel trace needs --{}, as in --steps 12,20-22 --ops 'rmsnorm_*,matmul'", needed);
  }
  kernel_kit::CaptureTerms terms{.run = without_slashes(arguments.positional(0)),
                                 .patterns = arguments.text("ops", ""),
                                 .folder = without_slashes(arguments.text("out", "trace"))};
  if (terms.folder.empty()) return fail(ExitCode::config, "--out is empty; expected a folder to make");
  HF_TRY(terms.overrides, parse_overrides(overrides));
  HF_TRY(terms.steps, kernel_kit::steps_of_list(arguments.text("steps", "")));
  HF_TRY(terms.ops, kernel_kit::ops_of_patterns(terms.patterns));
  HF_TRY(terms.calls, arguments.integer("calls", terms.calls, 1));
  return terms;
}

std::string text_of(const kernel_kit::Captured& captured) {
  TextTable table({"op", "call", "kernel", "calls of a step", "kept"}, 3);
  std::size_t kept = 0;
  for (const kernel_kit::CallsOfShape& shape : captured.trace.shapes) {
    kept += shape.kept.size();
    table.add({name_of(shape.op), shape.text, shape.kept.front().kernel,
               fmt::format("{}", shape.calls_of_step()), fmt::format("{}", shape.kept.size())});
  }
  std::string text = table.text();
  text += fmt::format("{} calls in {}, {}; made again from what was kept, each has the bits of the run\n",
                      kept, captured.trace.folder, format_bytes(captured.bytes));
  if (captured.differing.empty()) return text + "steps: same bits as the run recorded\n";
  return text + fmt::format("steps: other bits than the run recorded in {}; holdfast replay says more\n",
                            fmt::join(captured.differing, ", "));
}

}  // namespace

Result<int> run_kernel_trace(Env& env, const std::vector<std::string>& words) {
  HF_TRY(kernel_kit::CaptureTerms terms, capture_terms(words));
  terms.build = program_digest(env);
  HF_TRY(const kernel_kit::Captured captured,
         kernel_kit::capture_calls(env, terms,
                                   [](const std::string& sentence) { print_message("{}", sentence); }));
  fmt::print("{}", text_of(captured));
  return 0;
}

}  // namespace holdfast::cli
