#include "runtime/os/available_memory.h"

#include <algorithm>
#include <charconv>

#include "runtime/os/control_groups.h"

namespace holdfast::os {
namespace {

// Returns the number after `label` at the start of a line ("MemAvailable:   123 kB", "inactive_file 123").
std::optional<std::uint64_t> number_after(const std::string& text, const std::string& label) {
  std::size_t at = text.starts_with(label) ? 0 : text.find("\n" + label);
  if (at == std::string::npos) return std::nullopt;
  at = text.find_first_of("0123456789", text.find(label, at) + label.size());
  if (at == std::string::npos) return std::nullopt;
  std::uint64_t number = 0;
  std::from_chars(text.data() + at, text.data() + text.size(), number);
  return number;
}

// Returns a number of memory.stat that includes the groups below. Version 1 prefixes such names with
// "total_"; in version 2 every number includes them.
std::uint64_t of_stat(const std::string& stat, const std::string& name) {
  const std::optional<std::uint64_t> all = number_after(stat, "total_" + name + " ");
  return all.has_value() ? *all : number_after(stat, name + " ").value_or(0);
}

void lower_to(std::optional<MemoryRoom>& least, const std::optional<MemoryRoom>& other,
              const std::string& folder) {
  if (!other.has_value()) return;
  const std::uint64_t total = least.has_value() ? std::min(least->total_bytes, other->total_bytes) : 0;
  if (!least.has_value()) {
    least = *other;
    least->limited_by = folder;
    return;
  }
  least->total_bytes = total;
  if (other->available_bytes >= least->available_bytes) return;
  least->available_bytes = other->available_bytes;
  least->limited_by = folder;
}

// Beyond memory.high a process is slowed down to a stop, so it is a limit like memory.max.
void lower_to_v2(Env& env, std::optional<MemoryRoom>& least, const std::string& folder) {
  const std::string current = env.text_or_empty(folder + "/memory.current");
  if (current.empty()) return;
  const std::string stat = env.text_or_empty(folder + "/memory.stat");
  for (const char* limit : {"/memory.max", "/memory.high"})
    lower_to(least, room_of_group(env.text_or_empty(folder + limit), current, stat), folder);
}

// An ancestor counts and limits what is below it only where it is told to.
void lower_to_v1(Env& env, std::optional<MemoryRoom>& least, const ControlGroup& group) {
  const std::string usage = env.text_or_empty(group.folder + "/memory.usage_in_bytes");
  if (usage.empty()) return;
  if (!group.is_own && env.text_or_empty(group.folder + "/memory.use_hierarchy").starts_with('0')) return;
  lower_to(least,
           room_of_group(env.text_or_empty(group.folder + "/memory.limit_in_bytes"), usage,
                         env.text_or_empty(group.folder + "/memory.stat")),
           group.folder);
}

}  // namespace

std::optional<MemoryRoom> room_of_meminfo(const std::string& meminfo) {
  const std::optional<std::uint64_t> available_KiB = number_after(meminfo, "MemAvailable:");
  if (!available_KiB.has_value()) return std::nullopt;
  const std::uint64_t available = *available_KiB + number_after(meminfo, "SwapFree:").value_or(0);
  const std::uint64_t total =
      number_after(meminfo, "MemTotal:").value_or(0) + number_after(meminfo, "SwapTotal:").value_or(0);
  return MemoryRoom{.available_bytes = available * 1024, .total_bytes = std::max(total, available) * 1024};
}

std::optional<MemoryRoom> room_of_group(const std::string& limit, const std::string& usage,
                                        const std::string& stat) {
  // Version 1 reports the largest number of bytes in whole pages where there is no limit.
  constexpr std::uint64_t no_limit = std::uint64_t{1} << 62;
  const std::optional<std::uint64_t> total = number_after(limit, "");
  const std::optional<std::uint64_t> held = number_after(usage, "");
  if (!total.has_value() || !held.has_value() || *total >= no_limit) return std::nullopt;
  const std::uint64_t droppable =
      std::min(of_stat(stat, "inactive_file") + of_stat(stat, "active_file") / 2, *held);
  return MemoryRoom{.available_bytes = *total - std::min(*total, *held - droppable), .total_bytes = *total};
}

std::optional<MemoryRoom> memory_room(Env& env) {
  std::optional<MemoryRoom> least = room_of_meminfo(env.text_or_empty("/proc/meminfo"));
  for (const ControlGroup& group : control_groups(env, "memory")) {
    if (group.version == ControlGroup::Version::v2) {
      lower_to_v2(env, least, group.folder);
    } else {
      lower_to_v1(env, least, group);
    }
  }
  return least;
}

std::optional<std::uint64_t> available_memory_bytes(Env& env) {
  const std::optional<MemoryRoom> room = memory_room(env);
  return room.has_value() ? std::optional(room->available_bytes) : std::nullopt;
}

}  // namespace holdfast::os
