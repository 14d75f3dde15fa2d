// What the registry generates: texts for people and tools.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/config/option.h"

namespace holdfast {

// TOML that loads back to the same Config; with `origin`, each line is followed by a comment that says where
// it is from.
std::string dump_config(const Config& config, const std::map<std::string, std::string>& origin = {});
std::string options_help(std::string_view section);  // text of --help; "" = all sections
std::string options_reference();                     // docs/config.md
std::string options_schema();                        // JSON Schema for editors

struct ConfigChange {
  std::string key, before, after;
  ResumeEffect effect;
};
std::vector<ConfigChange> diff_config(const Config& before, const Config& after);

// Hash over the keys that are ResumeEffect::forbidden, and the lanes: two configs with equal identity
// describe the same run in the same cut.
std::string config_identity(const Config& config);

}  // namespace holdfast
