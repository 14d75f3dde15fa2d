// Generates texts for people and tools from the option registry.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/config/option.h"

namespace holdfast::config {

// Returns TOML that loads back to the same Config, without required keys that have no value; with `origin`, each line is followed by a comment with the
// origin of its value.
std::string dump_config(const Config& config, const std::map<std::string, std::string>& origin = {});
// Returns whether the value of the key is a command line for a shell, in which users may put tokens.
bool is_command(std::string_view key);
// Returns the same for files that others may read: each command is replaced by an empty text and a comment.
std::string record_config(const Config& config, const std::map<std::string, std::string>& origin = {});
// Converts a text of dump_config, of any version, to what record_config would have written.
std::string without_commands(const std::string& dumped);
// Returns the text of --help for a section or a key; "" = for all. ExitCode::config where there is no such
// name.
Result<std::string> options_help(std::string_view section);
std::string options_reference();  // docs/config.md
std::string options_schema();     // JSON Schema for editors

struct ConfigChange {
  std::string key, before, after;
  ResumeEffect effect;
};
// Returns the changes, without those of commands, which no record has.
std::vector<ConfigChange> diff_config(const Config& before, const Config& after);

// Returns a hash over the keys that are ResumeEffect::forbidden, and the lanes: two configs with equal
// identity describe the same run with the same lanes.
std::string config_identity(const Config& config);
// Returns the name of the preset whose shapes a resolved `model` gives without it and with plain rotary frequencies; ""
// when there is none. Such were all presets before there was model.rope_scaling, so a run of then is read as this.
std::string_view plain_preset_of(const ModelConfig& model);
// Returns whether `identity` is that of `config`, or what an older program made of a config that means the same today.
bool has_identity(const Config& config, const std::string& identity);

}  // namespace holdfast::config
