#include "runtime/config/option_value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "runtime/core/units.h"

namespace holdfast::config {
namespace {

template <typename Value>
const Value& field_of(const Option& option, const Config& config) {
  // Option::field only finds the field and changes nothing.
  return *static_cast<const Value*>(option.field(const_cast<Config&>(config)));
}

std::string sources_text(const SourceList& sources) {
  std::string text = "[";
  for (const SourceConfig& source : sources) {
    if (text.size() > 1) text += ", ";
    text += source_text(source);
  }
  return text + "]";
}

std::string texts_text(const TextList& texts) {
  std::string text = "[";
  for (const std::string& each : texts) text += (text.size() > 1 ? ", " : "") + toml_quote(each);
  return text + "]";
}

}  // namespace

const Option* find_option(std::string_view key) {
  for (const Option& option : option_registry()) {
    if (option.key == key) return &option;
  }
  return nullptr;
}

std::string_view section_of(std::string_view key) {
  const std::size_t dot = key.find('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

bool is_section(std::string_view path) {
  return std::ranges::any_of(option_registry(),
                             [&](const Option& option) { return section_of(option.key) == path; });
}

std::span<const std::string_view> source_formats() {
  static constexpr std::array<std::string_view, 5> formats = {"text", "jsonl", "llmc", "megatron", "llmq"};
  return formats;
}

std::string source_text(const SourceConfig& source) {
  std::string text = fmt::format("{{ path = {}, format = {}, weight = {}", toml_quote(source.path),
                                 toml_quote(source.format), toml_real(source.weight));
  // Only what is set, so that the configs of runs without them have the text, and the identity, that they had.
  if (!source.tokenizer.empty()) text += fmt::format(", tokenizer = {}", toml_quote(source.tokenizer));
  if (!source.pattern.empty()) text += fmt::format(", pattern = {}", toml_quote(source.pattern));
  if (source.column != SourceConfig().column) text += fmt::format(", column = {}", toml_quote(source.column));
  if (source.append_eos) text += ", append_eos = true";
  return text + " }";
}

namespace {

// Returns the name of a member as TOML has it, which may be anything where nobody has looked yet whether it is a field.
std::string toml_key(std::string_view name) {
  const auto is_bare = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && std::ranges::all_of(name, is_bare) ? std::string(name) : toml_quote(name);
}

}  // namespace

std::string kernel_rule_text(const KernelRuleConfig& rule) {
  std::string text = fmt::format("{{ op = {}", toml_quote(rule.op));
  if (!rule.layers.empty()) text += fmt::format(", layers = {}", toml_quote(rule.layers));
  std::vector<std::string> conditions;
  for (const ShapeConditionConfig& each : rule.where)
    conditions.push_back(fmt::format("{} = {}", toml_key(each.field), toml_quote(each.value)));
  if (!conditions.empty()) text += fmt::format(", where = {{ {} }}", fmt::join(conditions, ", "));
  text += fmt::format(", use = {}", toml_quote(rule.use));
  if (rule.every_steps > 0) text += fmt::format(", every = {}", rule.every_steps);
  return text + " }";
}

std::string value_text(const Option& option, const Config& config) {
  switch (option.type) {
    case OptionType::text:
    case OptionType::choice:
      return toml_quote(field_of<std::string>(option, config));
    case OptionType::texts:
      return texts_text(field_of<TextList>(option, config));
    case OptionType::integer:
      // run.seed is unsigned and never above what a signed integer holds, so both read the same.
      if (option.or_auto && field_of<std::int64_t>(option, config) == auto_value) return toml_quote("auto");
      return fmt::format("{}", field_of<std::int64_t>(option, config));
    case OptionType::real:
      return toml_real(field_of<double>(option, config));
    case OptionType::boolean:
      return field_of<bool>(option, config) ? "true" : "false";
    case OptionType::duration:
      return toml_quote(format_duration(field_of<std::int64_t>(option, config)));
    case OptionType::sources:
      return sources_text(field_of<SourceList>(option, config));
    case OptionType::kernel_rules: {
      std::vector<std::string> rules;
      for (const KernelRuleConfig& rule : field_of<KernelRuleList>(option, config))
        rules.push_back(kernel_rule_text(rule));
      return fmt::format("[{}]", fmt::join(rules, ", "));
    }
  }
  return {};
}

std::string default_text(const Option& option) {
  return value_text(option, Config{});
}

std::string type_text(const Option& option) {
  switch (option.type) {
    case OptionType::text:
      return "text";
    case OptionType::texts:
      return "list of texts";
    case OptionType::choice:
      return fmt::format("one of {}", fmt::join(option.choices, ", "));
    case OptionType::integer:
      return option.or_auto ? "integer or auto" : "integer";
    case OptionType::real:
      return "number";
    case OptionType::boolean:
      return "true or false";
    case OptionType::duration:
      return "duration";
    case OptionType::sources:
      return "list of {path, format, weight}";
    case OptionType::kernel_rules:
      return fmt::format("list of {{op, layers, where, use{}}}", option.has_every ? ", every" : "");
  }
  return {};
}

std::string range_text(const Option& option) {
  switch (option.type) {
    case OptionType::integer: {
      constexpr double int64_end = 9223372036854775807.0;  // rounds up to 2^63
      if (option.maximum >= int64_end) return fmt::format("{:.0f} to 2^63 - 1", option.minimum);
      return fmt::format("{:.0f} to {:.0f}", option.minimum, option.maximum);
    }
    case OptionType::real:
      return fmt::format("{} to {}", option.minimum, option.maximum);
    case OptionType::duration:
      return fmt::format("{} to {}", format_duration(static_cast<std::int64_t>(option.minimum)),
                         format_duration(static_cast<std::int64_t>(option.maximum)));
    default:
      return {};
  }
}

}  // namespace holdfast::config
