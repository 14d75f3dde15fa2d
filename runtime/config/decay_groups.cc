#include "runtime/config/decay_groups.h"

#include <charconv>
#include <system_error>

namespace holdfast::config {
namespace {

constexpr double largest_decay = 100.0;  // as optimizer.weight_decay

std::optional<double> decay_of(std::string_view text) {
  double decay = 0.0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), decay);
  const bool is_number = error == std::errc() && rest == text.data() + text.size();
  return is_number && decay >= 0.0 && decay <= largest_decay ? std::optional(decay) : std::nullopt;
}

std::string_view without_spaces(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

}  // namespace

Result<std::vector<DecayGroup>> parse_decay_groups(std::span<const std::string> entries) {
  std::vector<DecayGroup> groups;
  for (const std::string& entry : entries) {
    const std::string_view text = entry;
    const std::size_t equals = text.rfind('=');
    const std::string_view pattern = without_spaces(text.substr(0, equals));
    const std::optional<double> decay =
        equals == std::string_view::npos ? std::nullopt : decay_of(without_spaces(text.substr(equals + 1)));
    if (pattern.empty() || !decay.has_value())
      return fail(
          ExitCode::config,
          "optimizer.weight_decay_groups has the entry \"{}\": an entry is \"PATTERN=DECAY\", such as "
          "\"*.bias=0\" or \"embedding.*=0.01\", with a decay from 0 to {}",
          entry, largest_decay);
    groups.push_back({.pattern = std::string(pattern), .weight_decay = *decay});
  }
  return groups;
}

// Goes back to the last star alone: what an earlier one takes is never of use to a later part of the pattern.
bool matches_glob(std::string_view pattern, std::string_view name) {
  std::size_t at = 0, of_name = 0, after_star = std::string_view::npos, star_end = 0;
  while (of_name < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      after_star = ++at;
      star_end = of_name;
    } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == name[of_name])) {
      ++at;
      ++of_name;
    } else if (after_star != std::string_view::npos) {
      at = after_star;
      of_name = ++star_end;
    } else {
      return false;
    }
  }
  while (at < pattern.size() && pattern[at] == '*') ++at;
  return at == pattern.size();
}

std::optional<double> decay_in_groups(std::span<const DecayGroup> groups, std::string_view tensor) {
  for (const DecayGroup& group : groups) {
    if (matches_glob(group.pattern, tensor)) return group.weight_decay;
  }
  return std::nullopt;
}

}  // namespace holdfast::config
