#include "runtime/os/machine_facts.h"

#include <fmt/core.h>
#include <pwd.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/posix_io_engine.h"
#include "runtime/os/processes.h"

namespace holdfast::os {
namespace {

MachineFact processor_fact(Env& env) {
  std::string features;
  if (__builtin_cpu_supports("avx2") != 0) features += " avx2";
  if (__builtin_cpu_supports("avx512f") != 0) features += " avx512";
  if (__builtin_cpu_supports("avx512bf16") != 0) features += " avx512-bf16";
  return {"processors", true, fmt::format("{} usable;{}", env.processor_count(), features)};
}

MachineFact memory_fact() {
  const auto pages = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES));
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
  return {"memory", true, format_bytes(pages * page_bytes)};
}

// Containers often forbid io_uring, and older kernels lack it.
MachineFact io_uring_fact() {
  const Result<std::unique_ptr<IoEngine>> engine = make_io_uring_engine(/*depth=*/1);
  if (engine.ok()) return {"io_uring", true, "checkpoints go through it"};
  return {"io_uring", false, engine.error().message + ": checkpoints go through threads"};
}

// A page that is really made, written, read by another mapping and removed: that /dev/shm exists says little.
Result<void> try_shared_memory(Env& env) {
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
  const std::string name = fmt::format("holdfast-probe-{}-{:016x}", env.process_id(), env.random_u64());
  HF_TRY(const std::unique_ptr<SharedMemory> page, env.create_shared_memory(name, page_bytes));
  std::memset(page->bytes().data(), 0x5a, page->bytes().size());
  const Result<std::unique_ptr<SharedMemory>> again = env.open_shared_memory(name);
  HF_TRY_VOID(env.remove_shared_memory(name));
  HF_TRY_VOID(outcome_of(again));
  if (!std::ranges::equal(page->bytes(), (*again)->bytes())) {
    return fail(ExitCode::data, "what was written to shared memory does not read back");
  }
  return {};
}

MachineFact shared_memory_fact(Env& env) {
  const Result<void> usable = try_shared_memory(env);
  if (!usable.ok()) return {shared_memory_directory, false, usable.error().message};
  const Result<std::uint64_t> free_bytes = env.free_bytes(shared_memory_directory);
  if (!free_bytes.ok()) return {shared_memory_directory, false, free_bytes.error().message};
  std::string detail = fmt::format("writable, {} free", format_bytes(*free_bytes));
  if (const std::string removal = shared_memory_removal(env); !removal.empty())
    detail += "; no RAM snapshots: " + removal;
  return {shared_memory_directory, true, std::move(detail)};
}

}  // namespace

// Only root may read the identity of the firmware.
std::string machine_identity(Env& env) {
  for (const char* const path : {"/sys/class/dmi/id/product_uuid", "/etc/machine-id"}) {
    const std::string text = text_within_or_empty(env, path, text_limits::identity);
    const std::string line = text.substr(0, text.find('\n'));
    if (!line.empty()) return printable(line);
  }
  return {};
}

std::vector<MachineFact> machine_facts(Env& env) {
  return {processor_fact(env), memory_fact(), io_uring_fact(), shared_memory_fact(env)};
}

namespace {

using Version = ControlGroup::Version;

// Returns whether a comma-separated list contains the word.
bool has_word(const std::string& list, const std::string& word) {
  const std::vector<std::string> words = split_list(list);
  return std::ranges::find(words, word) != words.end();
}

// The kernel writes blanks of a path as \040.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool is_octal =
        text[at] == '\\' && at + 3 < text.size() &&
        std::ranges::all_of(text.substr(at + 1, 3), [](char digit) { return digit >= '0' && digit <= '7'; });
    if (!is_octal) {
      plain += text[at];
      continue;
    }
    plain += static_cast<char>(std::stoi(text.substr(at + 1, 3), nullptr, 8));
    at += 3;
  }
  return plain;
}

std::string without_end_slash(std::string path) {
  while (path.ends_with('/')) path.pop_back();
  return path;
}

// The path of this process in the hierarchy of `controller`, "" for the root; none where there is no such
// hierarchy.
std::optional<std::string> own_path(const std::string& groups, Version version,
                                    const std::string& controller) {
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // "4:memory:/user" or "0::/user"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_it = version == Version::v2 ? line.starts_with("0::") : has_word(controllers, controller);
    if (is_it) return without_end_slash(line.substr(second + 1));
  }
  return std::nullopt;
}

struct Mount {
  std::string root;   // the group that the mount begins at, "" for the hierarchy's root
  std::string point;  // where it is mounted
};

// Returns the first mount of the hierarchy. A line reads: "35 31 0:32 ROOT POINT rw - cgroup cgroup
// rw,memory".
std::optional<Mount> mount_of(const std::string& mounts, Version version, const std::string& controller) {
  std::istringstream lines(mounts);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::string number, root, point, type, source, options;
    std::istringstream(line.substr(0, dash)) >> number >> number >> number >> root >> point;
    std::istringstream(line.substr(dash + 3)) >> type >> source >> options;
    const bool is_it =
        version == Version::v2 ? type == "cgroup2" : type == "cgroup" && has_word(options, controller);
    if (is_it) return Mount{without_end_slash(unescaped(root)), without_end_slash(unescaped(point))};
  }
  return std::nullopt;
}

// Below the mount point; "" where the path is not one of a group below it, as of a process that was moved out
// of its namespace ("/../other"), or of a host's path inside a container.
std::string path_below(const Mount& mount, const std::string& path) {
  if (path.find("/..") != std::string::npos) return "";
  if (mount.root.empty()) return path;
  if (path == mount.root) return "";
  return path.starts_with(mount.root + "/") ? path.substr(mount.root.size()) : "";
}

void add_groups(std::vector<ControlGroup>& groups, Version version, const Mount& mount,
                const std::string& path) {
  bool is_own = true;
  for (std::string below = path_below(mount, path);; below.resize(below.find_last_of('/'))) {
    groups.push_back({.version = version, .folder = mount.point + below, .is_own = is_own});
    if (below.empty()) return;
    is_own = false;
  }
}

}  // namespace

std::vector<ControlGroup> control_groups(Env& env, const std::string& controller) {
  const std::string own = env.text_or_empty("/proc/self/cgroup");
  const std::string mounts = env.text_or_empty("/proc/self/mountinfo");
  std::vector<ControlGroup> groups;
  for (const Version version : {Version::v1, Version::v2}) {
    const std::optional<std::string> path = own_path(own, version, controller);
    const std::optional<Mount> mount = mount_of(mounts, version, controller);
    // The usual mount point may still have the limits that hold for all where /proc does not mention the
    // hierarchy.
    const std::string usual = version == Version::v1 ? "/sys/fs/cgroup/" + controller : "/sys/fs/cgroup";
    add_groups(groups, version, mount.value_or(Mount{.root = "", .point = usual}), path.value_or(""));
  }
  return groups;
}

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

namespace {

int processors_of_affinity() {
  const std::size_t count = posix_processes().own_processors().size();
  return count > 0 ? static_cast<int>(count) : static_cast<int>(std::thread::hardware_concurrency());
}

// The path of this process in the cgroup v2 hierarchy ("/" when there is none).
std::string own_cgroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return "/";
}

}  // namespace

int processors_of_quota(std::string_view cpu_max) {
  long long quota = 0;
  long long period = 0;
  const char* end = cpu_max.data() + cpu_max.size();
  const auto first = std::from_chars(cpu_max.data(), end, quota);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') return 0;
  const auto second = std::from_chars(first.ptr + 1, end, period);
  if (second.ec != std::errc() || quota <= 0 || period <= 0) return 0;
  const long long processors = quota / period + (quota % period != 0 ? 1 : 0);
  return static_cast<int>(std::min<long long>(processors, 1 << 20));
}

int available_processors() {
  int count = processors_of_affinity();
  // A quota anywhere on the way up holds for everything below it.
  for (std::filesystem::path group = own_cgroup();; group = group.parent_path()) {
    std::ifstream file("/sys/fs/cgroup" + group.string() + "/cpu.max");
    std::string text;
    const int quota = std::getline(file, text) ? processors_of_quota(text) : 0;
    if (quota > 0) count = std::min(count, quota);
    if (!group.has_relative_path()) break;
  }
  return std::max(count, 1);
}

namespace {

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// The last values of RemoveIPC in a file. Files as they are shipped have every key commented out, with the
// built-in value.
struct RemoveIpc {
  std::optional<bool> set, built;
};

RemoveIpc remove_ipc_of(const std::string& text) {
  RemoveIpc found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line = trimmed(line);
    const bool is_comment = line.starts_with('#');
    const std::string entry = trimmed(is_comment ? line.substr(1) : line);
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || trimmed(entry.substr(0, equals)) != "RemoveIPC") continue;
    const std::string value = trimmed(entry.substr(equals + 1));
    const bool removes = value == "yes" || value == "true" || value == "on" || value == "1";
    (is_comment ? found.built : found.set) = removes;
  }
  return found;
}

std::string text_or_nothing(Env& env, const std::string& path) {
  const Result<FileStatus> status = env.status(path);
  if (!status.ok() || !status->exists || status->directory) return {};
  return env.text_or_empty(path);
}

// Reads the configuration as systemd does: one main file, then the drop-ins of all directories in the order
// of their names; of one name the first directory's counts, and of one key the last file.
bool logind_removes(Env& env) {
  constexpr const char* directories[] = {"/etc/systemd", "/run/systemd", "/usr/lib/systemd"};
  std::string main_text;
  std::map<std::string, std::string> drop_ins;
  for (const std::string directory : directories) {
    if (main_text.empty()) main_text = text_or_nothing(env, directory + "/logind.conf");
    const Result<std::vector<std::string>> names = env.list(directory + "/logind.conf.d");
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      if (name.ends_with(".conf")) drop_ins.try_emplace(name, directory + "/logind.conf.d/" + name);
    }
  }
  const RemoveIpc of_main = remove_ipc_of(main_text);
  bool removes = of_main.set.value_or(of_main.built.value_or(true));  // systemd's own default
  for (const auto& [name, path] : drop_ins)
    removes = remove_ipc_of(text_or_nothing(env, path)).set.value_or(removes);
  return removes;
}

}  // namespace

std::string shared_memory_removal(Env& env, std::uint32_t user_id, const std::string& user_name) {
  constexpr std::uint32_t last_system_user = 999;
  if (user_id <= last_system_user) return {};
  // Logind removes nothing of a user without a session.
  const Result<FileStatus> known = env.status(fmt::format("/run/systemd/users/{}", user_id));
  if (!known.ok() || !known->exists) return {};
  const Result<FileStatus> lingers = env.status("/var/lib/systemd/linger/" + user_name);
  if (lingers.ok() && lingers->exists) return {};
  if (!logind_removes(env)) return {};
  return fmt::format(
      "systemd-logind removes the shared memory of {} at logout (RemoveIPC); loginctl enable-linger {}, or "
      "RemoveIPC=no in /etc/systemd/logind.conf, keeps it",
      user_name, user_name);
}

std::string shared_memory_removal(Env& env) {
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> buffer(16 << 10);
  const uid_t user = getuid();
  const bool is_known =
      getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr;
  return shared_memory_removal(env, user, is_known ? entry.pw_name : std::to_string(user));
}

}  // namespace holdfast::os
