// Arguments: parses command lines of the small commands: positional words, options, "--name value" or
// "--name=value", and flags, "--name". After "--" everything is positional. (The keys of a config,
// --section.key=value, are parsed by runtime/config.)
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::cli {

class Arguments {
 public:
  // Parses `words`. `command` is for error messages ("sample"); `options` are the names without dashes; each
  // takes a value and may occur once. `flags` take none, and `lists` a value each time that they occur. A last positional name with "..." at its end stands for one word or more. ExitCode::config: unknown option (with a
  // suggestion), missing value, or another number of positional words than `positional_names`.
  static Result<Arguments> parse(const std::string& command, const std::vector<std::string>& words,
                                 const std::vector<std::string_view>& positional_names,
                                 const std::vector<std::string_view>& options,
                                 const std::vector<std::string_view>& flags = {},
                                 const std::vector<std::string_view>& lists = {});

  const std::string& positional(std::size_t index) const { return positional_[index]; }
  std::vector<std::string> positional_from(std::size_t index) const {
    return {positional_.begin() + static_cast<std::ptrdiff_t>(index), positional_.end()};
  }
  bool has(std::string_view option) const { return values_.contains(std::string(option)); }
  std::string text(std::string_view option, const std::string& otherwise) const;
  // Returns the values of an option of `lists`, in their order.
  std::vector<std::string> texts(std::string_view option) const;
  // Returns the value of an option, or the first of `words` when it is missing. ExitCode::config when it is
  // none of them.
  Result<std::string> choice(std::string_view option, const std::vector<std::string_view>& words) const;
  // Return the value of an option, or `otherwise` when it is missing. ExitCode::config when the value is not
  // a number of this kind or below `smallest`.
  Result<std::int64_t> integer(std::string_view option, std::int64_t otherwise, std::int64_t smallest) const;
  Result<double> real(std::string_view option, double otherwise, double smallest) const;

 private:
  std::vector<std::string> positional_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::vector<std::string>> lists_;
};

// Returns whether --help or -h is among the words.
bool wants_help(const std::vector<std::string>& words);
// Flushes stdout and returns ok when all that was printed so far has been written; ExitCode::config with the
// reason when some of it is lost.
Result<void> finish_output();
Error output_is_lost(std::string_view reason);
// Prints "holdfast: <message>" on stderr (a message of several lines as it is); returns the error's exit
// code.
int complain(const Error& error);

}  // namespace holdfast::cli
