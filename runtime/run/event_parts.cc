#include "runtime/run/event_parts.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace holdfast::run {
namespace {

constexpr std::string_view suffix = ".jsonl";

std::string stem_of(const std::string& path) {
  HF_CHECK(path.ends_with(suffix));
  return path.substr(0, path.size() - suffix.size()) + "-";
}

}  // namespace

std::string event_part(const std::string& path, std::uint64_t number) {
  return fmt::format("{}{:04d}{}", stem_of(path), number, suffix);
}

Result<std::vector<std::uint64_t>> event_parts(Env& env, const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string stem = stem_of(path).substr(slash + 1);  // npos + 1 is 0
  std::vector<std::uint64_t> numbers;
  HF_TRY(const std::vector<std::string> names,
         env.list(slash == std::string::npos ? "." : path.substr(0, slash)));
  for (const std::string& name : names) {
    if (!name.starts_with(stem) || !name.ends_with(suffix)) continue;
    const char* const begin = name.data() + stem.size();
    const char* const end = name.data() + name.size() - suffix.size();
    std::uint64_t number = 0;
    const auto [rest, error] = std::from_chars(begin, end, number);
    if (error == std::errc() && rest == end && event_part(path, number).ends_with("/" + name))
      numbers.push_back(number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

Result<void> rotate_events(Env& env, const std::string& path) {
  HF_TRY(const std::vector<std::uint64_t> numbers, event_parts(env, path));
  return env.rename(path, event_part(path, numbers.empty() ? 1 : numbers.back() + 1));
}

}  // namespace holdfast::run
