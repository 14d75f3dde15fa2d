#include "runtime/config/document.h"

#include <fmt/core.h>

#include <sstream>
#include <string_view>

#include "runtime/config/option_value.h"
#include "runtime/config/presets.h"
#include "runtime/core/digest.h"

namespace holdfast::config {
namespace {

// A comment may hold no control characters and must be UTF-8; an origin comes from file names.
std::string comment_text(const std::string& origin) {
  std::string text = origin;
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

// Returns the list with a line for each element.
template <typename List>
std::string dumped_list(const Option& option, const Config& config,
                        std::string (*text_of)(const typename List::value_type&)) {
  const List& list = *static_cast<const List*>(option.field(const_cast<Config&>(config)));
  if (list.empty()) return "[]";
  std::string text = "[\n";
  for (const auto& element : list) text += fmt::format("  {},\n", text_of(element));
  return text + "]";
}

std::string dumped_value(const Option& option, const Config& config) {
  if (option.type == OptionType::sources) return dumped_list<SourceList>(option, config, source_text);
  if (option.type == OptionType::kernel_rules)
    return dumped_list<KernelRuleList>(option, config, kernel_rule_text);
  return value_text(option, config);
}

// Returns whether the value of a required key is the one that it has before anything was given, which no
// config may have.
bool is_without_value(std::string_view value) {
  return value == "\"\"" || value == "0" || value == "[]";
}

// Returns the part of the sources that decides the order of the samples: everything but the paths of their
// files. What a tokenizer made of them is in the fingerprint of the data.
std::string sources_without_paths(const SourceList& sources) {
  SourceList bare = sources;
  for (SourceConfig& source : bare) {
    source.path.clear();
    source.tokenizer.clear();
  }
  std::string text;
  for (const SourceConfig& source : bare) text += source_text(source);
  return text;
}

constexpr std::string_view kTrainingSources = "data.sources";
// A stored config is read without it (loader.h), and which files were loaded is part of the device's identity.
constexpr std::string_view kPlugins = "kernels.plugins";

// A run may be cut anew, so its lanes may change; a state made with other lanes has other bits all the same.
// Keys that are younger than the others count where they are set, so that manifests from before there were these keys
// keep their identity.
bool is_of_identity(const Option& option, const Config& config) {
  if (option.key == "model.head_size") return config.model.head_size != 0;
  if (option.key.starts_with("model.rope_") && option.key != "model.rope_theta")
    return config.model.rope_scaling != "none";
  if (option.key == "model.attention_window") return config.model.attention_window != 0;
  if (option.key == "model.attention_sinks") return config.model.attention_sinks != 0;
  if (option.key == "optimizer.name") return config.optimizer.name != "adamw";
  if (option.key == "model.freeze") return !config.model.freeze.empty();
  if (option.key.starts_with("lora.")) return config.lora.is_on();
  if (option.key == "parallel.lane_block") return config.parallel.lane_block != 1;
  return option.effect == ResumeEffect::forbidden || option.key == "parallel.lanes" ||
         option.key == "parallel.tensor_lanes";
}

}  // namespace

std::string dump_config(const Config& config, const std::map<std::string, std::string>& origin) {
  std::string text;
  std::string_view section;
  for (const Option& option : option_registry()) {
    if (const std::string_view own = section_of(option.key); own != section) {
      section = own;
      text += fmt::format("\n[{}]\n", section);
    }
    const std::string_view name = section.empty() ? option.key : option.key.substr(section.size() + 1);
    const std::string value = dumped_value(option, config);
    if (option.required && is_without_value(value)) continue;
    text += fmt::format("{} = {}", name, value);
    const auto found = origin.find(std::string(option.key));
    if (found != origin.end()) text += fmt::format("  # {}", comment_text(found->second));
    text += '\n';
  }
  return text;
}

bool is_command(std::string_view key) {
  return key.ends_with("command");
}

std::string record_config(const Config& config, const std::map<std::string, std::string>& origin) {
  return without_commands(dump_config(config, origin));
}

// A dump has one line for each key, but for lists.
std::string without_commands(const std::string& dumped) {
  constexpr std::string_view equals = " = ", empty = "\"\"";
  std::string kept;
  std::istringstream lines(dumped);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = line.find(equals);
    const bool is_of_command = end != std::string::npos && is_command(std::string_view(line).substr(0, end));
    if (is_of_command && !std::string_view(line).substr(end + equals.size()).starts_with(empty))
      line = fmt::format("{}{}{}  # set, and left out here: it may hold a secret", line.substr(0, end),
                         equals, empty);
    kept += line + '\n';
  }
  return kept;
}

std::vector<ConfigChange> diff_config(const Config& before, const Config& after) {
  std::vector<ConfigChange> changes;
  for (const Option& option : option_registry()) {
    ConfigChange change{std::string(option.key), value_text(option, before), value_text(option, after),
                        option.effect};
    if (change.before == change.after || is_command(option.key) || option.key == kPlugins) continue;
    if (option.key == kTrainingSources &&
        sources_without_paths(before.data.sources) == sources_without_paths(after.data.sources)) {
      change.effect = ResumeEffect::safe;
    }
    changes.push_back(std::move(change));
  }
  return changes;
}

std::string config_identity(const Config& config) {
  std::string text;
  for (const Option& option : option_registry()) {
    if (!is_of_identity(option, config)) continue;
    const std::string value = option.key == kTrainingSources ? sources_without_paths(config.data.sources)
                                                             : value_text(option, config);
    text += fmt::format("{} = {}\n", option.key, value);
  }
  return to_hex(digest_of(text));
}

std::string_view plain_preset_of(const ModelConfig& model) {
  const ModelConfig usual;
  Config given, plain;
  given.model = model;
  for (const ModelPreset& preset : model_presets()) {
    if (preset.model.rope_scaling == usual.rope_scaling) continue;
    plain.model = preset.model;
    plain.model.preset.clear();
    plain.model.freeze = model.freeze;
    plain.model.rope_scaling = usual.rope_scaling;
    plain.model.rope_factor = usual.rope_factor;
    plain.model.rope_original_positions = usual.rope_original_positions;
    if (diff_config(given, plain).empty()) return preset.name;
  }
  return {};
}

// The preset that is left out when such a run is read (loader.cc) is of the identity that it stored.
bool has_identity(const Config& config, const std::string& identity) {
  Config older = config;
  if (older.model.preset.empty()) older.model.preset = plain_preset_of(config.model);
  return identity == config_identity(config) || identity == config_identity(older);
}

}  // namespace holdfast::config
