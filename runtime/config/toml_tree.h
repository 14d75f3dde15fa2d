// Parses TOML text into a plain tree with the position of every key and value. Only toml_tree.cc sees the
// parser library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace holdfast::config {

struct TomlPosition {
  std::uint32_t line = 0;    // from 1; 0 = unknown
  std::uint32_t column = 0;  // from 1, in code points
};

struct TomlMember;

struct TomlValue {
  enum class Kind : std::uint8_t { text, integer, real, boolean, date, list, table };
  Kind kind = Kind::table;
  TomlPosition position;
  std::string text;
  std::int64_t integer = 0;
  double real = 0;
  bool boolean = false;
  std::vector<TomlValue> elements;  // list
  std::vector<TomlMember> members;  // table, sorted by position
};

struct TomlMember {
  std::string key;
  TomlPosition position;
  TomlValue value;
};

struct TomlError {
  TomlPosition position;
  std::string message;
};

// Returns the root table, or where and why the text is not TOML.
std::variant<TomlValue, TomlError> parse_toml(std::string_view text);

// Returns a TOML basic string that reads back to `text`.
std::string toml_quote(std::string_view text);

// Returns the shortest TOML float that reads back to `value`.
std::string toml_real(double value);

// Describes a value for messages: string "fast", integer 3, number 0.5, true, a list, a table, a date.
std::string describe(const TomlValue& value);

}  // namespace holdfast::config
