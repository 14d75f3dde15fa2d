#include <fmt/core.h>

#include <array>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/core/text.h"
#include "runtime/run/event_reading.h"

namespace holdfast::cli {
namespace {

constexpr const char* config_usage =
    "usage: holdfast config docs\n"
    "       holdfast config dump RUN.toml [--section.key=value ...]\n"
    "       holdfast config schema\n"
    "       holdfast config help [SECTION|KEY]\n"
    "       holdfast config events\n"
    "\n"
    "  docs      the reference of all keys, as Markdown\n"
    "  dump      the config with every default filled in, and where each value is from\n"
    "  schema    a JSON Schema for editors\n"
    "  help      the keys, or those of one section, or one key, for reading in a terminal\n"
    "  events    the reference of the events of a run's log, as Markdown\n";

Result<std::string> dump(const std::vector<std::string>& words) {
  if (words.empty() || words.front().starts_with("--")) {
    return fail(ExitCode::config, "config dump needs a config file first\n{}", config_usage);
  }
  HF_TRY(const std::vector<Override> overrides, parse_overrides({words.begin() + 1, words.end()}));
  HF_TRY(const LoadedConfig loaded, load_config(posix_env(), words.front(), overrides));
  return dump_config(loaded.config, loaded.origin);
}

Result<std::string> document(const std::vector<std::string>& words) {
  const std::string what = words.empty() ? "" : words.front();
  if (what == "dump") return dump({words.begin() + 1, words.end()});
  if ((what == "docs" || what == "schema" || what == "events") && words.size() > 1) {
    return fail(ExitCode::config, "config {} takes nothing more, got {}", what, words[1]);
  }
  if (what == "help") return options_help(words.size() > 1 ? words[1] : "");
  if (what == "docs") return options_reference();
  if (what == "schema") return options_schema();
  if (what == "events") return event_reference();
  constexpr std::array<std::string_view, 5> known = {"docs", "dump", "schema", "help", "events"};
  const std::string near = closest(what, known);
  return fail(ExitCode::config, "config needs one of docs, dump, schema, help and events, got {}{}\n{}",
              what.empty() ? "nothing" : what, near.empty() ? "" : fmt::format(", did you mean {}?", near),
              config_usage);
}

}  // namespace

int run_config_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", config_usage);
    return 0;
  }
  const Result<std::string> text = document(arguments);
  if (!text.ok()) return complain(text.error());
  fmt::print("{}", text.value());
  return 0;
}

}  // namespace holdfast::cli
