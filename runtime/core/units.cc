#include "runtime/core/units.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cmath>
#include <span>

namespace holdfast::core {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t size;
};

constexpr std::array<Unit, 5> duration_units = {
    {{"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}}};

// Below this every whole number is a double, and the products stay inside int64.
constexpr double largest_value = 9007199254740992.0;

const Unit* find_unit(std::span<const Unit> units, std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Takes a plain decimal number ("12", "1.5") from the front.
bool take_number(std::string_view& text, double& number) {
  const std::size_t length = text.find_first_not_of("0123456789.");
  const std::string_view digits = text.substr(0, length);
  const char* end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, number, std::chars_format::fixed);
  if (digits.empty() || error != std::errc() || rest != end) return false;
  text.remove_prefix(digits.size());
  return true;
}

std::string_view take_letters(std::string_view& text) {
  std::size_t length = 0;
  while (length < text.size() && ((text[length] | 0x20) >= 'a' && (text[length] | 0x20) <= 'z')) ++length;
  const std::string_view letters = text.substr(0, length);
  text.remove_prefix(length);
  return letters;
}

Error bad_duration(std::string_view text) {
  return fail(
      ExitCode::config,
      "'{}' is not a duration: write it like 3h50m, 90s, 500ms or a number of seconds (units d, h, m, s, ms, "
      "from large to small)",
      text);
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<std::string_view, 6> names = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < names.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, names[unit]);
}

std::string format_duration(std::int64_t milliseconds) {
  if (milliseconds == 0) return "0s";
  std::string text = milliseconds < 0 ? "-" : "";
  std::uint64_t rest = milliseconds < 0 ? 0 - static_cast<std::uint64_t>(milliseconds)
                                        : static_cast<std::uint64_t>(milliseconds);
  for (const Unit& unit : duration_units) {
    if (rest >= unit.size) text += fmt::format("{}{}", rest / unit.size, unit.name);
    rest %= unit.size;
  }
  return text;
}

std::string format_seconds(double seconds) {
  return seconds < 999.5 ? fmt::format("{:.3g} s", seconds) : fmt::format("{:.0f} s", seconds);
}

Result<std::int64_t> parse_duration(std::string_view text) {
  std::string_view rest = trimmed(text);
  if (rest.empty()) return bad_duration(text);
  double total_ms = 0.0;
  std::uint64_t smallest = duration_units.front().size + 1;
  bool first = true;
  while (!rest.empty()) {
    double number = 0.0;
    if (!take_number(rest, number)) return bad_duration(text);
    std::string_view name = take_letters(rest);
    if (name.empty() && first && rest.empty()) name = "s";
    const Unit* unit = find_unit(duration_units, name);
    if (unit == nullptr || unit->size >= smallest) return bad_duration(text);
    smallest = unit->size;
    total_ms += number * static_cast<double>(unit->size);
    first = false;
  }
  if (!(total_ms < largest_value)) return bad_duration(text);
  return static_cast<std::int64_t>(std::llround(total_ms));
}

}  // namespace holdfast::core
