#include "runtime/config/toml_tree.h"

#include <fmt/core.h>
#include <toml++/toml.h>

#include <algorithm>
#include <optional>
#include <tuple>

namespace holdfast::config {
namespace {

TomlPosition position_of(const toml::source_region& region) {
  return {static_cast<std::uint32_t>(region.begin.line), static_cast<std::uint32_t>(region.begin.column)};
}

TomlValue convert(const toml::node& node);

void convert_table(const toml::table& source, TomlValue& target) {
  target.kind = TomlValue::Kind::table;
  for (const auto& [key, node] : source) {
    target.members.push_back({std::string(key.str()), position_of(key.source()), convert(node)});
  }
  std::stable_sort(
      target.members.begin(), target.members.end(), [](const TomlMember& a, const TomlMember& b) {
        return std::tie(a.position.line, a.position.column) < std::tie(b.position.line, b.position.column);
      });
}

TomlValue convert(const toml::node& node) {
  TomlValue value;
  value.position = position_of(node.source());
  if (const auto* table = node.as_table()) {
    convert_table(*table, value);
  } else if (const auto* array = node.as_array()) {
    value.kind = TomlValue::Kind::list;
    for (const auto& element : *array) value.elements.push_back(convert(element));
  } else if (const auto* text = node.as_string()) {
    value.kind = TomlValue::Kind::text;
    value.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = TomlValue::Kind::integer;
    value.integer = integer->get();
  } else if (const auto* real = node.as_floating_point()) {
    value.kind = TomlValue::Kind::real;
    value.real = real->get();
  } else if (const auto* boolean = node.as_boolean()) {
    value.kind = TomlValue::Kind::boolean;
    value.boolean = boolean->get();
  } else {
    value.kind = TomlValue::Kind::date;
  }
  return value;
}

// The library bounds how deep values nest, but each part of a key makes a table inside of another one, too.
constexpr std::size_t key_dots_max = 15;

// Returns the index after the string that begins at `begin`, or that of the end of its line or of the text.
std::size_t end_of_string(std::string_view text, std::size_t begin) {
  const char quote = text[begin];
  const std::string three(3, quote);
  const bool has_lines = text.substr(begin).starts_with(three);
  for (std::size_t i = begin + (has_lines ? 3 : 1); i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (has_lines ? text.substr(i).starts_with(three) : text[i] == quote) {
      return i + (has_lines ? 3 : 1);
    } else if (!has_lines && text[i] == '\n') {
      return i;
    }
  }
  return text.size();
}

// Returns where a key has more dots than that, if one does. A dot in a string or a comment is none.
std::optional<TomlPosition> find_deep_key(std::string_view text) {
  std::size_t dots = 0;
  for (std::size_t i = 0; i < text.size();) {
    const char each = text[i];
    if (each == '"' || each == '\'') {
      i = end_of_string(text, i);
    } else if (each == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else {
      if (std::string_view(",=[]{}\n").find(each) != std::string_view::npos) dots = 0;
      if (each == '.' && ++dots > key_dots_max) {
        const auto line = std::ranges::count(text.substr(0, i), '\n') + 1;
        return TomlPosition{.line = static_cast<std::uint32_t>(line), .column = 1};
      }
      ++i;
    }
  }
  return std::nullopt;
}

// Returns the part of the text that stands before the line.
std::string_view before_line(std::string_view text, std::uint32_t line) {
  std::size_t end = 0;
  for (std::uint32_t i = 1; i < line; ++i) end = text.find('\n', end) + 1;
  return text.substr(0, end);
}

// Parses text without such keys.
std::variant<TomlValue, TomlError> parse_shallow(std::string_view text) {
  // The library may be a shared object that was built with exceptions; they end here.
  try {
    const toml::table table = toml::parse(text);
    return convert(table);
  } catch (const toml::parse_error& error) {
    return TomlError{position_of(error.source()), std::string(error.description())};
  }
}

}  // namespace

std::variant<TomlValue, TomlError> parse_toml(std::string_view text) {
  const std::optional<TomlPosition> deep = find_deep_key(text);
  if (!deep.has_value()) return parse_shallow(text);
  // An error in an earlier line says more: this may be no TOML at all. One that the cut makes is in the line
  // before it.
  const std::variant<TomlValue, TomlError> before = parse_shallow(before_line(text, deep->line));
  if (const auto* error = std::get_if<TomlError>(&before);
      error != nullptr && error->position.line + 1 < deep->line)
    return *error;
  return TomlError{*deep, fmt::format("a key has more than {} parts", key_dots_max + 1)};
}

std::string toml_quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\u{:04X}", static_cast<unsigned>(byte));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string toml_real(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string describe(const TomlValue& value) {
  switch (value.kind) {
    case TomlValue::Kind::text:
      return fmt::format("string {}", toml_quote(value.text));
    case TomlValue::Kind::integer:
      return fmt::format("integer {}", value.integer);
    case TomlValue::Kind::real:
      return fmt::format("number {}", toml_real(value.real));
    case TomlValue::Kind::boolean:
      return value.boolean ? "true" : "false";
    case TomlValue::Kind::date:
      return "a date";
    case TomlValue::Kind::list:
      return "a list";
    case TomlValue::Kind::table:
      return "a table";
  }
  return {};
}

}  // namespace holdfast::config
