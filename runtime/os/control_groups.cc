#include "runtime/os/control_groups.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "runtime/core/split.h"

namespace holdfast::os {
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

}  // namespace holdfast::os
