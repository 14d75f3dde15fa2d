// What the registry generates: texts for people and tools.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/config/option.h"

namespace holdfast::inline config {

// TOML that loads back to the same Config; with `origin`, each line is followed by a comment that says where
// it is from.
std::string dump_config(const Config& config, const std::map<std::string, std::string>& origin = {});
// Whether the value of the key is a line for a shell, in which people put tokens.
bool is_command(std::string_view key);
// The same for files that others may read: an empty text and a comment stand in the place of each command.
std::string record_config(const Config& config, const std::map<std::string, std::string>& origin = {});
// A text of dump_config, of whatever version, as record_config would have made it.
std::string without_commands(const std::string& dumped);
// Returns what --help says of a section or a key, "" = of all. ExitCode::config where there is no such thing.
Result<std::string> options_help(std::string_view section);
std::string options_reference();  // docs/config.md
std::string options_schema();     // JSON Schema for editors

struct ConfigChange {
  std::string key, before, after;
  ResumeEffect effect;
};
// Says nothing of the commands, which no record has.
std::vector<ConfigChange> diff_config(const Config& before, const Config& after);

// Hash over the keys that are ResumeEffect::forbidden, and the lanes: two configs with equal identity
// describe the same run in the same cut.
std::string config_identity(const Config& config);

}  // namespace holdfast::inline config
