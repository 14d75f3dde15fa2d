#include "runtime/cli/common/arguments.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "runtime/core/text.h"
#include "runtime/os/console.h"

namespace holdfast::cli {
namespace {

Error unknown_option(const std::string& command, const std::string& name,
                     const std::vector<std::string_view>& options) {
  const std::string near = closest(name, options);
  return fail(ExitCode::config, "{} has no option --{}{}; holdfast {} --help lists them", command, name,
              near.empty() ? "" : fmt::format(", did you mean --{}?", near), command);
}

template <typename Number>
Result<Number> parse_number(std::string_view option, const std::string& text, Number smallest,
                            const char* kind) {
  Number value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && rest == text.data() + text.size() && value >= smallest) return value;
  return fail(ExitCode::config, "--{} must be {} of at least {}, got \"{}\"", option, kind, smallest, text);
}

}  // namespace

Result<Arguments> Arguments::parse(const std::string& command, const std::vector<std::string>& words,
                                   const std::vector<std::string_view>& positional_names,
                                   const std::vector<std::string_view>& options,
                                   const std::vector<std::string_view>& flags,
                                   const std::vector<std::string_view>& lists) {
  Arguments arguments;
  std::vector<std::string_view> known = options;
  known.insert(known.end(), flags.begin(), flags.end());
  known.insert(known.end(), lists.begin(), lists.end());
  bool only_positional = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (only_positional || word.size() < 2 || !word.starts_with('-')) {
      arguments.positional_.push_back(word);
      continue;
    }
    if (word == "--") {
      only_positional = true;
      continue;
    }
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::size_t dashes = std::min<std::size_t>(word.find_first_not_of('-'), equals);
    const std::string name = word.substr(dashes, equals - dashes);
    if (dashes != 2 || std::ranges::find(known, name) == known.end())
      return unknown_option(command, name, known);
    if (std::ranges::find(flags, name) != flags.end()) {
      if (equals < word.size())
        return fail(ExitCode::config, "--{0} takes no value, got \"{1}\"; write --{0}", name, word);
      arguments.values_[name] = "";
      continue;
    }
    if (equals == word.size() && i + 1 == words.size()) {
      return fail(ExitCode::config, "--{0} has no value; write --{0} VALUE or --{0}=VALUE", name);
    }
    const std::string value = equals < word.size() ? word.substr(equals + 1) : words[++i];
    if (std::ranges::find(lists, name) != lists.end()) {
      arguments.lists_[name].push_back(value);
      continue;
    }
    if (!arguments.values_.emplace(name, value).second) {
      return fail(ExitCode::config, "--{} is given twice; give it once", name);
    }
  }
  const bool has_list = !positional_names.empty() && positional_names.back().ends_with("...");
  if (arguments.positional_.size() == positional_names.size()) return arguments;
  if (has_list && arguments.positional_.size() > positional_names.size()) return arguments;
  std::string expected;
  for (const std::string_view name : positional_names) expected += fmt::format(" {}", name);
  if (arguments.positional_.size() > positional_names.size()) {
    return fail(ExitCode::config,
                "{} takes{} and nothing more, got also \"{}\"; holdfast {} --help says how it is used",
                command, expected, arguments.positional_[positional_names.size()], command);
  }
  return fail(ExitCode::config, "{} needs{}; holdfast {} --help says how it is used", command, expected,
              command);
}

std::string Arguments::text(std::string_view option, const std::string& otherwise) const {
  const auto found = values_.find(std::string(option));
  return found == values_.end() ? otherwise : found->second;
}

std::vector<std::string> Arguments::texts(std::string_view option) const {
  const auto found = lists_.find(std::string(option));
  return found == lists_.end() ? std::vector<std::string>() : found->second;
}

Result<std::string> Arguments::choice(std::string_view option,
                                      const std::vector<std::string_view>& words) const {
  const std::string word = text(option, std::string(words.front()));
  if (std::ranges::find(words, word) != words.end()) return word;
  const std::string near = closest(word, words);
  return fail(ExitCode::config, "--{} must be one of {}, got \"{}\"{}", option, fmt::join(words, ", "), word,
              near.empty() ? "" : fmt::format(", did you mean {}?", near));
}

Result<std::int64_t> Arguments::integer(std::string_view option, std::int64_t otherwise,
                                        std::int64_t smallest) const {
  if (!has(option)) return otherwise;
  return parse_number(option, text(option, ""), smallest, "a whole number");
}

Result<double> Arguments::real(std::string_view option, double otherwise, double smallest) const {
  if (!has(option)) return otherwise;
  HF_TRY(const double value, parse_number(option, text(option, ""), smallest, "a number"));
  if (std::isfinite(value)) return value;
  return fail(ExitCode::config, "--{} must be finite, got \"{}\"", option, text(option, ""));
}

bool wants_help(const std::vector<std::string>& words) {
  return std::ranges::any_of(words, [](const std::string& word) { return word == "--help" || word == "-h"; });
}

Error output_is_lost(std::string_view reason) {
  return fail(ExitCode::config, "the output cannot be written: {}", reason);
}

Result<void> finish_output() {
  errno = 0;
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!lost) return {};
  return output_is_lost(errno == 0 ? "its reader is gone, or the disk is full" : std::strerror(errno));
}

int complain(const Error& error) {
  std::fflush(stdout);
  // Lines of a list of problems begin with a file position each, so they get no prefix.
  const bool is_list = error.message.find('\n') != std::string::npos;
  write_to_console(stderr, fmt::format("{}{}\n", is_list ? "" : "holdfast: ", error.message));
  return static_cast<int>(error.code);
}

}  // namespace holdfast::cli
