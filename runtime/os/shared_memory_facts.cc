#include "runtime/os/shared_memory_facts.h"

#include <fmt/core.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

namespace holdfast::os {
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
