// The option registry: the single source of every key's type, unit, default, range, help and effect on
// resume.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/core/result.h"

namespace holdfast::config {

// Effect of a changed value on a run that is resumed.
enum class ResumeEffect : std::uint8_t {
  safe,       // the bits of the training do not change (paths, layout, intervals)
  numeric,    // the future differs from what it would have been; announced
  forbidden,  // it would be another run: exit 2
};

using SourceList = std::vector<SourceConfig>;
using TextList = std::vector<std::string>;
using KernelRuleList = std::vector<KernelRuleConfig>;

enum class OptionType : std::uint8_t {
  text,
  texts,
  choice,
  integer,
  real,
  boolean,
  duration,
  sources,
  kernel_rules
};

inline constexpr std::int64_t auto_value = CheckpointConfig::interval_auto;

struct Option {
  std::string_view key;  // "training.steps"
  OptionType type;
  std::string_view unit;  // "steps", "tokens", "" ...
  std::string_view help;  // one line
  ResumeEffect effect;
  bool required = false;
  std::string_view example = {};          // value of a required one, as in a config
  double minimum = 0, maximum = 0;        // integer, real, duration (ms); inclusive
  std::vector<std::string_view> choices;  // choice
  bool begins_at_file = false;            // texts: paths that begin at the folder of the file that has them
  bool has_every = false;                 // kernel_rules: each has `every`, a number of steps
  bool or_auto = false;  // integer: "auto" is a value too, and the field then holds auto_value
  // Returns the field inside a Config; exactly the pointer type of `type` (text/choice: std::string, texts:
  // TextList, integer/duration: std::int64_t (run.seed: std::uint64_t), real: double, boolean: bool, sources:
  // SourceList, kernel_rules: KernelRuleList).
  std::function<void*(Config&)> field;
};

// Returns every option, in the order of the reference: a constant table, built at the first call.
std::span<const Option> option_registry();

}  // namespace holdfast::config
