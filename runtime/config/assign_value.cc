#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "runtime/config/option_value.h"
#include "runtime/core/text.h"
#include "runtime/core/units.h"

namespace holdfast::config {
namespace {

using Kind = TomlValue::Kind;

constexpr double kExact = 9007199254740992.0;  // 2^53: up to here every whole number is a double

// One value being read: its key for messages, and where problems go.
class Reader {
 public:
  Reader(const Option& option, Config& config, std::vector<ValueProblem>& problems)
      : option_(option), config_(config), problems_(problems) {}

  void assign(const TomlValue& value);

 private:
  void problem(const TomlValue& value, std::string message) {
    problems_.push_back({value.position, std::move(message)});
  }
  void wrong_type(const TomlValue& value, std::string_view key, std::string_view expected) {
    problem(value, fmt::format("{} must be {}, got {}", key, expected, describe(value)));
  }
  template <typename Value>
  Value& field() {
    return *static_cast<Value*>(option_.field(config_));
  }

  void assign_text(const TomlValue& value);
  void assign_texts(const TomlValue& value);
  void assign_choice(const TomlValue& value);
  void assign_integer(const TomlValue& value);
  void assign_real(const TomlValue& value);
  void assign_duration(const TomlValue& value);
  void assign_sources(const TomlValue& value);
  void assign_kernel_rules(const TomlValue& value);

  std::optional<KernelRuleConfig> read_rule(const TomlValue& value, const std::string& key);
  bool read_rule_member(const TomlMember& member, const std::string& key, KernelRuleConfig& rule);
  bool read_op(const TomlValue& value, const std::string& key, std::string& op);
  bool read_conditions(const TomlValue& value, const std::string& key,
                       std::vector<ShapeConditionConfig>& where);
  std::optional<SourceConfig> read_source(const TomlValue& value, const std::string& key);
  bool read_source_member(const TomlMember& member, const std::string& key, SourceConfig& source);
  bool read_format(const TomlValue& value, const std::string& key, SourceConfig& source);
  bool read_weight(const TomlValue& value, const std::string& key, SourceConfig& source);
  bool read_name(const TomlValue& value, const std::string& key, const char* what, std::string& name);
  bool read_truth(const TomlValue& value, const std::string& key, bool& truth);
  bool in_range(const TomlValue& value, double number, const std::string& minimum, const std::string& maximum,
                const std::string& got);

  const Option& option_;
  Config& config_;
  std::vector<ValueProblem>& problems_;
};

std::optional<std::int64_t> whole(const TomlValue& value) {
  if (value.kind == Kind::integer) return value.integer;
  if (value.kind != Kind::real || !(std::abs(value.real) <= kExact)) return std::nullopt;
  const auto integer = static_cast<std::int64_t>(value.real);
  const double rest = value.real - static_cast<double>(integer);
  return rest < 0.0 || rest > 0.0 ? std::nullopt : std::optional(integer);
}

std::optional<double> number(const TomlValue& value) {
  if (value.kind == Kind::real) return value.real;
  if (value.kind != Kind::integer || value.integer > static_cast<std::int64_t>(kExact) ||
      value.integer < -static_cast<std::int64_t>(kExact)) {
    return std::nullopt;
  }
  return static_cast<double>(value.integer);
}

bool Reader::in_range(const TomlValue& value, double found, const std::string& minimum,
                      const std::string& maximum, const std::string& got) {
  if (found >= option_.minimum && found <= option_.maximum) return true;
  if (found > option_.maximum) {
    problem(value, fmt::format("{} must be <= {}, got {}", option_.key, maximum, got));
  } else {
    problem(value, fmt::format("{} must be >= {}, got {}", option_.key, minimum, got));
  }
  return false;
}

void Reader::assign_text(const TomlValue& value) {
  if (value.kind != Kind::text) return wrong_type(value, option_.key, "a string");
  if (value.text.find('\0') != std::string::npos) {
    return problem(value, fmt::format("{} must not contain a zero byte", option_.key));
  }
  field<std::string>() = value.text;
}

// One text stands for a list of one.
void Reader::assign_texts(const TomlValue& value) {
  const std::span<const TomlValue> elements =
      value.kind == Kind::list ? std::span(value.elements) : std::span(&value, 1);
  TextList list;
  for (const TomlValue& element : elements) {
    if (element.kind != Kind::text || element.text.find('\0') != std::string::npos)
      return wrong_type(element, option_.key, "a list of strings");
    list.push_back(element.text);
  }
  field<TextList>() = std::move(list);
}

void Reader::assign_choice(const TomlValue& value) {
  const std::string expected = fmt::format("one of {}", fmt::join(option_.choices, ", "));
  if (value.kind != Kind::text) return wrong_type(value, option_.key, expected);
  // The default is always accepted: for model.preset that is the empty string.
  const bool is_default = toml_quote(value.text) == default_text(option_);
  if (!is_default &&
      std::ranges::find(option_.choices, std::string_view(value.text)) == option_.choices.end()) {
    const std::string near = closest(value.text, option_.choices);
    return problem(value,
                   fmt::format("{} must be {}, got {}{}", option_.key, expected, toml_quote(value.text),
                               near.empty() ? "" : fmt::format(", did you mean {}?", near)));
  }
  field<std::string>() = value.text;
}

void Reader::assign_integer(const TomlValue& value) {
  if (option_.or_auto && value.kind == Kind::text && value.text == "auto") {
    field<std::int64_t>() = auto_value;
    return;
  }
  const std::optional<std::int64_t> found = whole(value);
  if (!found)
    return wrong_type(value, option_.key, option_.or_auto ? "an integer or \"auto\"" : "an integer");
  if (!in_range(value, static_cast<double>(*found), fmt::format("{:.0f}", option_.minimum),
                fmt::format("{:.0f}", option_.maximum), fmt::format("{}", *found))) {
    return;
  }
  // run.seed is unsigned: its range starts at 0, where both types have the same bits.
  field<std::int64_t>() = *found;
}

void Reader::assign_real(const TomlValue& value) {
  const std::optional<double> found = number(value);
  if (!found) return wrong_type(value, option_.key, "a number");
  if (std::isnan(*found)) return wrong_type(value, option_.key, "a finite number");
  if (!in_range(value, *found, fmt::format("{}", option_.minimum), fmt::format("{}", option_.maximum),
                fmt::format("{}", *found))) {
    return;
  }
  field<double>() = *found;
}

void Reader::assign_duration(const TomlValue& value) {
  std::int64_t found_ms = 0;
  if (value.kind == Kind::text) {
    const Result<std::int64_t> parsed = parse_duration(value.text);
    if (!parsed) return problem(value, fmt::format("{}: {}", option_.key, parsed.error().message));
    found_ms = *parsed;
  } else {
    const std::optional<double> seconds = number(value);
    if (!seconds || !(std::abs(*seconds) < kExact / 1000)) {
      return wrong_type(value, option_.key, "a duration such as \"3h50m\" or a number of seconds");
    }
    found_ms = std::llround(*seconds * 1000);
  }
  if (in_range(value, static_cast<double>(found_ms),
               format_duration(static_cast<std::int64_t>(option_.minimum)),
               format_duration(static_cast<std::int64_t>(option_.maximum)), format_duration(found_ms))) {
    field<std::int64_t>() = found_ms;
  }
}

// `what`: what the text names, "a file".
bool Reader::read_name(const TomlValue& value, const std::string& key, const char* what, std::string& name) {
  if (value.kind != Kind::text) {
    wrong_type(value, key, "a string");
    return false;
  }
  if (value.text.empty() || value.text.find('\0') != std::string::npos) {
    problem(value, fmt::format("{} must name {}, got {}", key, what, toml_quote(value.text)));
    return false;
  }
  name = value.text;
  return true;
}

bool Reader::read_truth(const TomlValue& value, const std::string& key, bool& truth) {
  if (value.kind != Kind::boolean) {
    wrong_type(value, key, "true or false");
    return false;
  }
  truth = value.boolean;
  return true;
}

bool Reader::read_format(const TomlValue& value, const std::string& key, SourceConfig& source) {
  const std::string expected = fmt::format("one of {}", fmt::join(source_formats(), ", "));
  if (value.kind != Kind::text) {
    wrong_type(value, key, expected);
    return false;
  }
  if (std::ranges::find(source_formats(), std::string_view(value.text)) == source_formats().end()) {
    const std::string near = closest(value.text, source_formats());
    problem(value, fmt::format("{} must be {}, got {}{}", key, expected, toml_quote(value.text),
                               near.empty() ? "" : fmt::format(", did you mean {}?", near)));
    return false;
  }
  source.format = value.text;
  return true;
}

bool Reader::read_weight(const TomlValue& value, const std::string& key, SourceConfig& source) {
  constexpr double largest = 1e9;
  const std::optional<double> found = number(value);
  if (!found) {
    wrong_type(value, key, "a number");
    return false;
  }
  if (!(*found >= 0.0 && *found <= largest)) {
    problem(value, fmt::format("{} must be between 0 and {}, got {}", key, largest, *found));
    return false;
  }
  source.weight = *found;
  return true;
}

bool Reader::read_source_member(const TomlMember& member, const std::string& key, SourceConfig& source) {
  static constexpr std::array<std::string_view, 7> members = {"path",    "format", "weight",    "tokenizer",
                                                              "pattern", "column", "append_eos"};
  const std::string full = fmt::format("{}.{}", key, member.key);
  if (member.key == "path") return read_name(member.value, full, "a file", source.path);
  if (member.key == "format") return read_format(member.value, full, source);
  if (member.key == "weight") return read_weight(member.value, full, source);
  if (member.key == "tokenizer") return read_name(member.value, full, "a file", source.tokenizer);
  if (member.key == "pattern")
    return read_name(member.value, full, "gpt2, llama3, qwen2 or a regular expression", source.pattern);
  if (member.key == "column") return read_name(member.value, full, "a field of JSONL", source.column);
  if (member.key == "append_eos") return read_truth(member.value, full, source.append_eos);
  const std::string near = closest(member.key, members);
  const std::string hint = near.empty() ? ": a source has path, format and weight, and with text tokenizer, "
                                          "pattern, column and append_eos"
                                        : fmt::format(", did you mean {}.{}?", key, near);
  problems_.push_back({member.position, fmt::format("unknown key {}{}", full, hint)});
  return false;
}

std::optional<SourceConfig> Reader::read_source(const TomlValue& value, const std::string& key) {
  if (value.kind != Kind::table) {
    wrong_type(value, key, "a table like { path = \"corpus.txt\" }");
    return std::nullopt;
  }
  SourceConfig source;
  bool good = true;
  bool has_path = false;
  for (const TomlMember& member : value.members) {
    has_path = has_path || member.key == "path";
    good = read_source_member(member, key, source) && good;
  }
  if (!has_path) {
    problem(value, fmt::format(
                       "{} has no path: every source names its file, like {{ path = \"corpus.txt\" }}", key));
    return std::nullopt;
  }
  return good ? std::optional(source) : std::nullopt;
}

void Reader::assign_sources(const TomlValue& value) {
  if (value.kind != Kind::list) {
    return wrong_type(value, option_.key, "a list of tables like [{ path = \"corpus.txt\" }]");
  }
  SourceList list;
  for (std::size_t index = 0; index < value.elements.size(); ++index) {
    auto source = read_source(value.elements[index], fmt::format("{}[{}]", option_.key, index));
    if (source) list.push_back(std::move(*source));
  }
  if (list.size() == value.elements.size()) field<SourceList>() = std::move(list);
}

bool Reader::read_op(const TomlValue& value, const std::string& key, std::string& op) {
  if (value.kind != Kind::text) {
    wrong_type(value, key, "the name of an op");
    return false;
  }
  const std::vector<std::string_view> names(std::begin(op_names), std::end(op_names));
  if (std::ranges::find(names, value.text) == names.end()) {
    const std::string near = closest(value.text, names);
    problem(value,
            fmt::format("{} is {}, and there is no such op{}; `holdfast kernel list` has them", key,
                        toml_quote(value.text), near.empty() ? "" : fmt::format(", did you mean {}?", near)));
    return false;
  }
  op = value.text;
  return true;
}

// Numbers and truth values are kept as text: what they mean depends on the field of the op (kernels/call_filter.h).
bool Reader::read_conditions(const TomlValue& value, const std::string& key,
                             std::vector<ShapeConditionConfig>& where) {
  if (value.kind != Kind::table) {
    wrong_type(value, key, "a table like { rows = 4096 }");
    return false;
  }
  for (const TomlMember& member : value.members) {
    ShapeConditionConfig condition;
    condition.field = member.key;
    if (member.value.kind == Kind::text) {
      condition.value = member.value.text;
    } else if (member.value.kind == Kind::integer) {
      condition.value = fmt::format("{}", member.value.integer);
    } else if (member.value.kind == Kind::boolean) {
      condition.value = member.value.boolean ? "true" : "false";
    } else {
      wrong_type(member.value, fmt::format("{}.{}", key, member.key),
                 "a number, true, false, or text such as \">=4096\"");
      return false;
    }
    where.push_back(std::move(condition));
  }
  return true;
}

bool Reader::read_rule_member(const TomlMember& member, const std::string& key, KernelRuleConfig& rule) {
  std::vector<std::string_view> members = {"op", "layers", "where", "use"};
  if (option_.has_every) members.emplace_back("every");
  const std::string full = fmt::format("{}.{}", key, member.key);
  const TomlValue& value = member.value;
  if (member.key == "op") return read_op(value, full, rule.op);
  if (member.key == "where") return read_conditions(value, full, rule.where);
  if (member.key == "layers" && value.kind == Kind::integer) {
    rule.layers = fmt::format("{}", value.integer);
    return true;
  }
  if (member.key == "layers" || member.key == "use") {
    std::string& text = member.key == "use" ? rule.use : rule.layers;
    if (value.kind == Kind::text && !value.text.empty() && value.text.find('\0') == std::string::npos) {
      text = value.text;
      return true;
    }
    wrong_type(value, full, member.key == "use" ? "the name of an implementation" : "text such as \"0-3\"");
    return false;
  }
  if (member.key == "every" && option_.has_every) {
    const std::optional<std::int64_t> steps = whole(value);
    constexpr std::int64_t most = 1'000'000'000;
    if (steps && *steps >= 1 && *steps <= most) {
      rule.every_steps = *steps;
      return true;
    }
    problem(value,
            fmt::format("{} must be a number of steps from 1 to {}, got {}", full, most, describe(value)));
    return false;
  }
  const std::string near = closest(member.key, members);
  problems_.push_back(
      {member.position, fmt::format("unknown key {}{}", full,
                                    near.empty() ? fmt::format("; there are {}", fmt::join(members, ", "))
                                                 : fmt::format(", did you mean {}.{}?", key, near))});
  return false;
}

std::optional<KernelRuleConfig> Reader::read_rule(const TomlValue& value, const std::string& key) {
  if (value.kind != Kind::table) {
    wrong_type(value, key, "a table like { op = \"rmsnorm_forward\", layers = \"0-3\", use = \"mine\" }");
    return std::nullopt;
  }
  constexpr std::int64_t default_every_steps = 100;
  KernelRuleConfig rule;
  if (option_.has_every) rule.every_steps = default_every_steps;
  bool good = true;
  for (const TomlMember& member : value.members) good = read_rule_member(member, key, rule) && good;
  if (!good) return std::nullopt;
  for (const auto& [name, text] : {std::pair("op", rule.op), std::pair("use", rule.use)}) {
    if (!text.empty()) continue;
    problem(value,
            fmt::format("{0} has no {1}: a rule names an op and the implementation to use, like {{ op = "
                        "\"rmsnorm_forward\", use = \"mine\" }}",
                        key, name));
    return std::nullopt;
  }
  return rule;
}

void Reader::assign_kernel_rules(const TomlValue& value) {
  if (value.kind != Kind::list) {
    return wrong_type(value, option_.key,
                      fmt::format("a list of tables: write [[{}]] before each", option_.key));
  }
  KernelRuleList list;
  for (std::size_t index = 0; index < value.elements.size(); ++index) {
    auto rule = read_rule(value.elements[index], fmt::format("{}[{}]", option_.key, index));
    if (rule) list.push_back(std::move(*rule));
  }
  if (list.size() == value.elements.size()) field<KernelRuleList>() = std::move(list);
}

void Reader::assign(const TomlValue& value) {
  switch (option_.type) {
    case OptionType::text:
      return assign_text(value);
    case OptionType::texts:
      return assign_texts(value);
    case OptionType::choice:
      return assign_choice(value);
    case OptionType::integer:
      return assign_integer(value);
    case OptionType::real:
      return assign_real(value);
    case OptionType::boolean:
      if (value.kind != Kind::boolean) return wrong_type(value, option_.key, "true or false");
      field<bool>() = value.boolean;
      return;
    case OptionType::duration:
      return assign_duration(value);
    case OptionType::sources:
      return assign_sources(value);
    case OptionType::kernel_rules:
      return assign_kernel_rules(value);
  }
}

}  // namespace

void assign_value(const Option& option, const TomlValue& value, Config& config,
                  std::vector<ValueProblem>& problems) {
  Reader(option, config, problems).assign(value);
}

}  // namespace holdfast::config
