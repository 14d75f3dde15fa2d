// Typed access to Option::field: one option's value as text, and from a TOML value.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/option.h"
#include "runtime/config/toml_tree.h"

namespace holdfast::config {

const Option* find_option(std::string_view key);  // nullptr when unknown

// Returns "training" for "training.steps"; empty for a top-level key.
std::string_view section_of(std::string_view key);
bool is_section(std::string_view path);  // whether the section has keys

// Returns the value in TOML syntax on one line; it reads back to the same value.
std::string value_text(const Option& option, const Config& config);
std::string default_text(const Option& option);
std::string source_text(const SourceConfig& source);         // the inline table of one source
std::string kernel_rule_text(const KernelRuleConfig& rule);  // that of one rule

std::string type_text(const Option& option);   // "integer", "one of fp32, bf16", ...
std::string range_text(const Option& option);  // "1 to 4096"; empty for types without a range

// Returns the formats that data.sources and evaluation.sources accept.
std::span<const std::string_view> source_formats();

struct ValueProblem {
  TomlPosition position;
  std::string message;  // names the key
};

// Writes `value` into the option's field of `config`, or adds a problem and leaves the field unchanged.
// Numbers of another type are accepted when nothing is lost.
void assign_value(const Option& option, const TomlValue& value, Config& config,
                  std::vector<ValueProblem>& problems);

}  // namespace holdfast::config
