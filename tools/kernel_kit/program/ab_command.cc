#include "tools/kernel_kit/program/ab_command.h"

#include <fmt/format.h>

#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "tools/kernel_kit/kernel_ab.h"
#include "tools/kernel_kit/program/child_process.h"

namespace holdfast::cli {
namespace {

constexpr int kernel_ended_it = 1;  // exit code, as of kernel check

// AbWords are the words of the command, those of a config apart.
struct AbWords {
  std::vector<std::string> overrides = {}, candidate = {}, others = {};
};

AbWords split_words(const std::vector<std::string>& words) {
  AbWords result;
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    const bool is_key =
        name.starts_with("--") && (name.find('.') != std::string::npos || name == "--threads");
    // Plug-ins and instructions are for both sides: they change no kernel by themselves, and the process has them once.
    const bool is_of_b =
        name.starts_with("--kernels.") && name != "--kernels.plugins" && name != "--kernels.isa";
    (!is_key ? result.others : is_of_b ? result.candidate : result.overrides).push_back(word);
  }
  return result;
}

Result<Arguments> parse(const std::vector<std::string>& others) {
  return Arguments::parse("kernel ab", others, {"RUN"},
                          {"plugin", "steps", "from", "seconds", "json", "page", "folder"}, {"noise"});
}

Result<bench::kernel_kit::AbTerms> terms_of(const AbWords& words, const Arguments& arguments) {
  bench::kernel_kit::AbTerms terms{.run = arguments.positional(0),
                                   .plugin = arguments.text("plugin", ""),
                                   .noise = arguments.has("noise")};
  HF_TRY(terms.overrides, parse_overrides(words.overrides));
  HF_TRY(terms.candidate, parse_overrides(words.candidate));
  constexpr std::int64_t steps = 500;
  HF_TRY(const std::int64_t wanted, arguments.integer("steps", steps, 1));
  terms.steps = static_cast<std::uint64_t>(wanted);
  HF_TRY(const std::string from, arguments.choice("from", {"newest", "start"}));
  terms.from_start = from == "start";
  return terms;
}

Result<void> write_if_asked(Env& env, const Arguments& arguments, const std::string& name,
                            const std::string& text) {
  if (!arguments.has(name)) return {};
  const Result<void> written = env.replace_text(arguments.text(name, ""), text);
  return written.ok() ? written : fail(ExitCode::config, "--{}: {}", name, written.error().message);
}

}  // namespace

Result<int> run_kernel_ab_here(Env& env, const std::vector<std::string>& words) {
  const AbWords split = split_words(words);
  HF_TRY(const Arguments arguments, parse(split.others));
  return work_as_child(env, arguments.text("folder", ""), [&](const Tell& tell) -> Result<Json> {
    HF_TRY(bench::kernel_kit::AbTerms terms, terms_of(split, arguments));
    terms.build = program_digest(env);
    HF_TRY(const bench::kernel_kit::AbReport report, bench::kernel_kit::compare_in_run(env, terms, tell));
    return Json{{"document", report.json()},
                {"text", bench::kernel_kit::text_of(report)},
                {"page", bench::kernel_kit::page_of(report)}};
  });
}

Result<int> run_kernel_ab(Env& env, const std::vector<std::string>& words) {
  const AbWords split = split_words(words);
  HF_TRY(const Arguments arguments, parse(split.others));
  HF_TRY_VOID(outcome_of(terms_of(split, arguments)));
  constexpr std::int64_t silence_s = 600;
  HF_TRY(const std::int64_t patience_s, arguments.integer("seconds", silence_s, 1));
  std::vector<std::string> child = {"ab-here"};
  child.insert(child.end(), words.begin(), words.end());
  HF_TRY(const ChildEnd end,
         run_child(env, {.words = child, .silence_s = patience_s, .shows_progress = true}));
  if (!end.result.has_value()) {
    const bool is_of_b = end.fault.find(": B") != std::string::npos || end.fault.ends_with("making B");
    fmt::print("wrong: {} {}\n", is_of_b ? "B" : "A", end.fault);
    return kernel_ended_it;
  }
  HF_TRY_VOID(write_if_asked(env, arguments, "json", end.result->at("document").dump_any(1) + "\n"));
  HF_TRY_VOID(write_if_asked(env, arguments, "page", end.result->value("page", "")));
  fmt::print("{}", end.result->at("text").get<std::string>());
  return 0;
}

}  // namespace holdfast::cli
