#include "runtime/config/environment.h"

#include <algorithm>
#include <array>

#include "runtime/config/option.h"
#include "runtime/config/option_value.h"
#include "runtime/config/suggest_key.h"

namespace holdfast::config {
namespace {

constexpr std::string_view kPrefix = "HOLDFAST_";
constexpr std::string_view kTestPrefix = "HOLDFAST_TEST_";

constexpr auto kOtherVariables = std::to_array<std::string_view>({
    cuda_module_variable,
    "HOLDFAST_FAULTS",      // runtime/os/fault_point.h
    "HOLDFAST_FAULTS_LOG",  //
    "HOLDFAST_LAUNCH",      // runtime/run/launch_record.h
    "HOLDFAST_CORE_FILES",  // runtime/cli/main.cc
    // Commands of a config get these, and may be such a program again.
    "HOLDFAST_BEFORE_STEP", "HOLDFAST_CHECKPOINT", "HOLDFAST_DOWNLOAD", "HOLDFAST_FILE", "HOLDFAST_NAME",
    "HOLDFAST_RUN", "HOLDFAST_STEP",
    // runtime/metrics/notify_mind.h, beside some of those
    "HOLDFAST_CAUSE", "HOLDFAST_DIRECTORY", "HOLDFAST_EVENT", "HOLDFAST_EXIT_CODE", "HOLDFAST_HOST",
    "HOLDFAST_LEFT_OUT", "HOLDFAST_RANK", "HOLDFAST_SENTENCE", "HOLDFAST_STATE", "HOLDFAST_TIME",
    // runtime/launch/named_hosts.h
    "HOLDFAST_HOSTS_MISSING", "HOLDFAST_RANKS_MISSING", "HOLDFAST_WHY_MISSING",
    "HOLDFAST_PEERS_PYTHON",  // tools/bench_peers
});

}  // namespace

std::string environment_name(std::string_view key) {
  std::string name(kPrefix);
  for (const char c : key) {
    const bool is_small = c >= 'a' && c <= 'z';
    name += c == '.' ? '_' : is_small ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return name;
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (const Option& option : option_registry()) names.push_back(environment_name(option.key));
  return names;
}

std::vector<std::string> unknown_variables(Env& env) {
  std::vector<std::string> unknown = env.variable_names(std::string(kPrefix));
  const std::vector<std::string> of_keys = environment_names();
  std::erase_if(unknown, [&](const std::string& name) {
    return name.starts_with(kTestPrefix) ||
           std::ranges::find(kOtherVariables, name) != kOtherVariables.end() ||
           std::ranges::find(of_keys, name) != of_keys.end() || env.variable(name).empty();
  });
  return unknown;
}

std::string suggest_key_of_variable(std::string_view name) {
  std::string key;
  for (const char c : name.substr(kPrefix.size())) {
    if (c == '_' && key.find('.') == std::string::npos && is_section(key)) {
      key += '.';
    } else {
      key += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return suggest_key(key);
}

}  // namespace holdfast::config
