#include "parallel/nccl/nccl_environment.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/os/posix_start.h"

namespace holdfast::parallel {
namespace {

// Returns the configuration files in NCCL's order. NCCL looks up the home directory in the user database,
// which rarely differs from $HOME.
std::vector<std::string> configuration_files(Env& env) {
  std::vector<std::string> files;
  const std::string named = env.variable("NCCL_CONF_FILE"), home = env.variable("HOME");
  if (!named.empty()) {
    files.push_back(named);
  } else if (!home.empty()) {
    files.push_back(home + "/.nccl.conf");
  }
  files.emplace_back("/etc/nccl.conf");
  return files;
}

// The first line NAME=VALUE; NCCL keeps spaces as they are (param.cc, setEnvFile).
std::optional<std::string> value_in(std::string_view text, const std::string& name) {
  const std::string begin = name + "=";
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(begin)) return std::string(line.substr(begin.size()));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return std::nullopt;
}

}  // namespace

std::optional<NcclSetting> find_nccl_setting(Env& env, const std::string& name) {
  std::string value = env.variable(name);
  if (!value.empty()) return NcclSetting{.value = std::move(value), .place = "the environment"};
  for (const std::string& file : configuration_files(env)) {
    const Result<std::string> text = env.read_text(file);
    if (!text.ok()) continue;  // most have none
    std::optional<std::string> found = value_in(*text, name);
    if (found.has_value()) return NcclSetting{.value = std::move(*found), .place = file};
  }
  return std::nullopt;
}

Result<void> check_nccl_environment(Env& env) {
  const std::optional<NcclSetting> blocking = find_nccl_setting(env, "NCCL_COMM_BLOCKING");
  // NCCL parses the value as a number and ignores all but 0 and 1.
  if (!blocking.has_value() || std::strtoll(blocking->value.c_str(), nullptr, 0) != 1) return {};
  return fail(ExitCode::config,
              "NCCL_COMM_BLOCKING is {} in {}, but must be 0 or unset: NCCL would wait for a rank that died "
              "without any deadline; unset it, or do without NCCL by parallel.exchange = \"host\"",
              blocking->value, blocking->place);
}

// NCCL ignores a value that is not positive, and takes a text for the number that it begins with.
NcclThreadBlocks nccl_thread_blocks(Env& env) {
  NcclThreadBlocks most;
  for (const char* name : {"NCCL_MAX_CTAS", "NCCL_MIN_P2P_NCHANNELS"}) {
    const std::optional<NcclSetting> setting = find_nccl_setting(env, name);
    if (!setting.has_value()) continue;
    constexpr long long channels_max = 64;  // MAXCHANNELS of NCCL
    const long long count = std::min(std::strtoll(setting->value.c_str(), nullptr, 0), channels_max);
    if (count <= most.count) continue;
    most = {.count = static_cast<int>(count),
            .setting = fmt::format("{} is {} in {}", name, count, setting->place)};
  }
  return most;
}

void set_nccl_variables(Env& env) {
  const std::pair<const char*, const char*> variables[] = {
      {"NCCL_NVLS_ENABLE", "0"}, {"NCCL_RAS_ENABLE", "0"}, {"NCCL_MULTI_RANK_GPU_ENABLE", "1"}};
  for (const auto& [name, value] : variables) {
    if (!find_nccl_setting(env, name).has_value()) set_variable_if_unset(name, value);
  }
}

}  // namespace holdfast::parallel
