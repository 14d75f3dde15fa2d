#include "runtime/core/available_memory.h"

#include <algorithm>
#include <charconv>

namespace holdfast {
namespace {

// The number behind `label` at the start of a line ("MemAvailable:   123 kB", "inactive_file 123").
std::optional<std::uint64_t> number_after(const std::string& text, const std::string& label) {
  std::size_t at = text.starts_with(label) ? 0 : text.find("\n" + label);
  if (at == std::string::npos) return std::nullopt;
  at = text.find_first_of("0123456789", text.find(label, at) + label.size());
  if (at == std::string::npos) return std::nullopt;
  std::uint64_t number = 0;
  std::from_chars(text.data() + at, text.data() + text.size(), number);
  return number;
}

std::string text_of(Env& env, const std::string& path) {
  Result<std::string> text = env.read_text(path);
  return text.ok() ? std::move(text).value() : std::string();
}

// The path of this process in the hierarchy of control groups (version 2), "" when there is none.
std::string own_group(Env& env) {
  const std::string groups = text_of(env, "/proc/self/cgroup");
  const std::string mark = "0::/";
  const std::size_t at = groups.starts_with(mark) ? 0 : groups.find("\n" + mark);
  if (at == std::string::npos) return "";
  const std::size_t begin = groups.find('/', at);
  std::string group = groups.substr(begin, groups.find('\n', begin) - begin);
  while (group.ends_with('/')) group.pop_back();
  return group;
}

void lower_to(std::optional<std::uint64_t>& least, const std::optional<std::uint64_t>& other) {
  if (other.has_value()) least = std::min(least.value_or(*other), *other);
}

}  // namespace

std::optional<std::uint64_t> available_of_meminfo(const std::string& meminfo) {
  const std::optional<std::uint64_t> memory_KiB = number_after(meminfo, "MemAvailable:");
  if (!memory_KiB.has_value()) return std::nullopt;
  return (*memory_KiB + number_after(meminfo, "SwapFree:").value_or(0)) * 1024;
}

std::optional<std::uint64_t> available_of_group(const std::string& max, const std::string& current,
                                                const std::string& stat) {
  const std::optional<std::uint64_t> limit = number_after(max, "");
  const std::optional<std::uint64_t> usage = number_after(current, "");
  if (!limit.has_value() || !usage.has_value()) return std::nullopt;
  const std::uint64_t droppable = std::min(number_after(stat, "inactive_file ").value_or(0), *usage);
  return *limit - std::min(*limit, *usage - droppable);
}

std::optional<std::uint64_t> available_memory_bytes(Env& env) {
  std::optional<std::uint64_t> least = available_of_meminfo(text_of(env, "/proc/meminfo"));
  // A limit anywhere on the way up holds for everything below it.
  for (std::string group = own_group(env);; group.resize(group.find_last_of('/'))) {
    const std::string folder = "/sys/fs/cgroup" + group + "/memory.";
    lower_to(least, available_of_group(text_of(env, folder + "max"), text_of(env, folder + "current"),
                                       text_of(env, folder + "stat")));
    if (group.empty()) break;
  }
  lower_to(least, available_of_group(text_of(env, "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
                                     text_of(env, "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
                                     text_of(env, "/sys/fs/cgroup/memory/memory.stat")));
  return least;
}

}  // namespace holdfast
