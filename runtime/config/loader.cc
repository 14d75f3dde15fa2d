#include "runtime/config/loader.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "runtime/config/option_value.h"
#include "runtime/config/presets.h"
#include "runtime/config/suggest_key.h"
#include "runtime/config/toml_tree.h"
#include "runtime/core/text.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::config {
namespace {

constexpr std::size_t kDeepestInclude = 32;

// A component that is not a plain word is shown quoted, so that "a.b" = 1 is not taken for b in [a].
std::string join_key(const std::string& prefix, const std::string& component) {
  const bool plain = !component.empty() && std::ranges::all_of(component, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  const std::string shown = plain ? component : toml_quote(component);
  return prefix.empty() ? shown : prefix + "." + shown;
}

std::string place_in(const std::string& name, TomlPosition position) {
  if (position.line == 0) return name;
  return fmt::format("{}:{}:{}", name, position.line, position.column);
}

// Returns whether a key of older programs is nothing's any more. The configs that they stored have it.
bool is_retired(std::string_view key) {
  return key == "kernels.gelu_backward";  // kernels.matmul computes it
}

// Makes relative paths of a file begin at its folder. Each .. is left for the system, which knows the links.
void begin_at_folder_of(const std::string& name, TextList& paths) {
  const std::filesystem::path folder = std::filesystem::path(name).parent_path();
  for (std::string& path : paths) path = (folder / path).string();
}

class Loader {
 public:
  explicit Loader(Env& env) : env_(env) {}

  // Adds what `text` says over what is there. Problems of a file come before those of what it includes.
  void load_text(const std::string& text, const std::string& name, std::vector<std::string> chain);
  void load_environment();
  void load_override(const Override& given);
  // Forgets what would let this process run code, of a config that a run or a checkpoint has stored: whoever can write
  // there may not decide that.
  void forget_code() { loaded_.config.kernels.plugins.clear(); }
  void check_required(const std::string& name);

  Result<LoadedConfig> finish(const std::string& name) &&;
  Result<LoadedConfig> finish_stored(const std::string& name, StoredConfig of) &&;

 private:
  void keep_plain_rotary();

  struct Assignment {
    const Option* option;
    const TomlValue* value;
  };
  // The assignments and problems of one document.
  struct Scan {
    std::vector<Assignment> assignments;
    std::vector<ValueProblem> problems;
    const TomlMember* include = nullptr;
  };

  void scan_table(const TomlValue& table, const std::string& prefix, Scan& scan);
  void load_includes(const TomlMember& include, const std::string& name,
                     const std::vector<std::string>& chain, Scan& scan);
  void include_file(const TomlValue& value, const std::string& name, const std::vector<std::string>& chain,
                    Scan& scan);
  void assign_text(const Option& option, const std::string& text, const std::string& place,
                   const std::string& origin);
  std::string unknown_key(const std::string& key);
  std::string unknown_variable(const std::string& name);
  void name_defaults();
  Result<LoadedConfig> loaded_or_problems(const std::string& name);

  Env& env_;
  LoadedConfig loaded_;
  std::vector<ConfigProblem> problems_;
  bool unreadable_ = false;          // a file is not TOML: what it would have said is not reported as missing
  std::set<std::string> suggested_;  // keys that an unknown one probably meant: not reported as missing too
};

std::string Loader::unknown_key(const std::string& key) {
  const std::string near = suggest_key(key);
  if (near.empty()) return fmt::format("unknown key {}: `holdfast config docs` lists every key", key);
  suggested_.insert(near);
  return fmt::format("unknown key {}, did you mean {}?", key, near);
}

void Loader::scan_table(const TomlValue& table, const std::string& prefix, Scan& scan) {
  for (const TomlMember& member : table.members) {
    const std::string path = join_key(prefix, member.key);
    const bool is_table = member.value.kind == TomlValue::Kind::table;
    if (path == "include") {
      scan.include = &member;
    } else if (const Option* option = find_option(path)) {
      scan.assignments.push_back({option, &member.value});
    } else if (is_retired(path)) {
      continue;
    } else if (is_table && (is_section(path) || !member.value.members.empty())) {
      scan_table(member.value, path, scan);
    } else if (is_section(path)) {
      scan.problems.push_back(
          {member.value.position, fmt::format("{0} is a section, got {1}: write [{0}] and its keys "
                                              "below it",
                                              path, describe(member.value))});
    } else {
      scan.problems.push_back({member.position, unknown_key(path)});
    }
  }
}

void Loader::include_file(const TomlValue& value, const std::string& name,
                          const std::vector<std::string>& chain, Scan& scan) {
  if (value.kind != TomlValue::Kind::text) {
    scan.problems.push_back(
        {value.position,
         fmt::format("include must be a file name or a list of them, got {}", describe(value))});
    return;
  }
  const std::filesystem::path base = std::filesystem::path(name).parent_path();
  const std::string path = (base / value.text).lexically_normal().string();
  if (std::ranges::find(chain, path) != chain.end()) {
    scan.problems.push_back(
        {value.position,
         fmt::format("{} includes itself (by way of {}): take one include out", path, chain.back())});
    return;
  }
  if (chain.size() >= kDeepestInclude) {
    scan.problems.push_back(
        {value.position, fmt::format("include is nested more than {} deep", kDeepestInclude)});
    return;
  }
  const Result<std::string> text = read_text_within(env_, path, text_limits::config);
  if (!text) {
    scan.problems.push_back(
        {value.position,
         fmt::format("include: {}; a path starts at the directory of the file that includes it",
                     text.error().message)});
    return;
  }
  load_text(*text, path, chain);
}

void Loader::load_includes(const TomlMember& include, const std::string& name,
                           const std::vector<std::string>& chain, Scan& scan) {
  if (include.value.kind == TomlValue::Kind::list) {
    for (const TomlValue& element : include.value.elements) include_file(element, name, chain, scan);
  } else {
    include_file(include.value, name, chain, scan);
  }
}

void Loader::load_text(const std::string& text, const std::string& name, std::vector<std::string> chain) {
  const std::variant<TomlValue, TomlError> parsed = parse_toml(text);
  if (const auto* error = std::get_if<TomlError>(&parsed)) {
    problems_.push_back({place_in(name, error->position), fmt::format("not valid TOML: {}", error->message)});
    unreadable_ = true;
    return;
  }
  chain.push_back(std::filesystem::path(name).lexically_normal().string());
  Scan scan;
  scan_table(std::get<TomlValue>(parsed), "", scan);
  // Included files are read first, because the including file's own values win; its own problems are shown
  // first.
  const std::vector<ConfigProblem> before = std::exchange(problems_, {});
  if (scan.include != nullptr) load_includes(*scan.include, name, chain, scan);
  for (const Assignment& assignment : scan.assignments) {
    assign_value(*assignment.option, *assignment.value, loaded_.config, scan.problems);
    if (assignment.option->begins_at_file)
      begin_at_folder_of(name, *static_cast<TextList*>(assignment.option->field(loaded_.config)));
    loaded_.origin[std::string(assignment.option->key)] = place_in(name, assignment.value->position);
  }
  std::ranges::stable_sort(scan.problems, [](const ValueProblem& a, const ValueProblem& b) {
    return std::tie(a.position.line, a.position.column) < std::tie(b.position.line, b.position.column);
  });
  const std::vector<ConfigProblem> included = std::exchange(problems_, before);
  for (const ValueProblem& found : scan.problems)
    problems_.push_back({place_in(name, found.position), found.message});
  problems_.insert(problems_.end(), included.begin(), included.end());
}

// The value of "value = TEXT" when that is one TOML value.
std::optional<TomlValue> parse_single(const std::string& text) {
  std::variant<TomlValue, TomlError> parsed = parse_toml("value = " + text);
  auto* table = std::get_if<TomlValue>(&parsed);
  if (table == nullptr || table->members.size() != 1) return std::nullopt;
  return std::move(table->members.front().value);
}

// A value as typed on a command line: TOML syntax, or a bare word, which is a string. Keys that hold text
// take everything but a quoted string literally. Empty when the text is not UTF-8.
std::optional<TomlValue> parse_typed(const Option& option, const std::string& text) {
  const bool holds_text = option.type == OptionType::text || option.type == OptionType::choice;
  const bool quoted = text.starts_with('"') || text.starts_with('\'');
  if (!holds_text || quoted) {
    if (auto value = parse_single(text)) return value;
  }
  return parse_single(toml_quote(text));
}

void Loader::assign_text(const Option& option, const std::string& text, const std::string& place,
                         const std::string& origin) {
  loaded_.origin[std::string(option.key)] = origin;
  const std::optional<TomlValue> value = parse_typed(option, text);
  if (!value) {
    problems_.push_back({place, fmt::format("{} must be UTF-8 text", option.key)});
    return;
  }
  std::vector<ValueProblem> found;
  assign_value(option, *value, loaded_.config, found);
  for (ValueProblem& problem : found) problems_.push_back({place, std::move(problem.message)});
}

std::string Loader::unknown_variable(const std::string& name) {
  if (name == "HOLDFAST_NETWORK")
    return "is read no more: set network.interface, or HOLDFAST_NETWORK_INTERFACE, instead";
  const std::string near = suggest_key_of_variable(name);
  if (near.empty())
    return "is the variable of no key: `holdfast config docs` lists every key; unset it, or give it a name "
           "that does not begin with HOLDFAST_";
  suggested_.insert(near);
  return fmt::format("is the variable of no key, did you mean {} ({})?", environment_name(near), near);
}

void Loader::load_environment() {
  for (const Option& option : option_registry()) {
    const std::string name = environment_name(option.key);
    const std::string text = env_.variable(name);
    if (!text.empty()) assign_text(option, text, name, fmt::format("environment {}", name));
  }
  for (const std::string& name : unknown_variables(env_)) problems_.push_back({name, unknown_variable(name)});
}

void Loader::load_override(const Override& given) {
  const std::string place = fmt::format("--{}", given.key);
  if (const Option* option = find_option(given.key)) {
    assign_text(*option, given.value, place, "command line");
  } else if (is_section(given.key)) {
    problems_.push_back({place, fmt::format("{0} is a section: write --{0}.key=value", given.key)});
  } else {
    problems_.push_back({place, unknown_key(given.key)});
  }
}

void Loader::check_required(const std::string& name) {
  for (const Option& option : option_registry()) {
    const std::string key(option.key);
    if (!option.required || loaded_.origin.contains(key) || suggested_.contains(key)) continue;
    const std::string_view section = section_of(option.key);
    problems_.push_back({name, fmt::format("{} is missing: {}; for example [{}] {} = {}", key, option.help,
                                           section, key.substr(section.size() + 1), option.example)});
  }
}

// A config stored before there was model.rope_scaling means plain frequencies, whatever its preset means today: the
// shapes beside the preset are then all that is known of the model.
void Loader::keep_plain_rotary() {
  const ModelPreset* const preset = find_preset(loaded_.config.model.preset);
  const bool is_older = !loaded_.origin.contains("model.rope_scaling");
  if (preset != nullptr && is_older && preset->model.rope_scaling != "none")
    loaded_.config.model.preset.clear();
}

void Loader::name_defaults() {
  for (const Option& option : option_registry())
    loaded_.origin.try_emplace(std::string(option.key), "default");
}

Result<LoadedConfig> Loader::finish(const std::string& name) && {
  if (!unreadable_) check_required(name);
  name_defaults();
  if (problems_.empty()) {
    problems_ = check_config(loaded_.config, loaded_.origin);
    for (ConfigProblem& problem : check_intervals(loaded_.config, loaded_.origin))
      problems_.push_back(std::move(problem));
  }
  return loaded_or_problems(name);
}

Result<LoadedConfig> Loader::finish_stored(const std::string& name, StoredConfig of) && {
  const bool is_of_run = of == StoredConfig::of_run;
  if (!unreadable_ && is_of_run) check_required(name);
  keep_plain_rotary();
  name_defaults();
  if (problems_.empty()) {
    problems_ = is_of_run ? check_config(loaded_.config, loaded_.origin)
                          : check_model(loaded_.config, loaded_.origin);
  }
  return loaded_or_problems(name);
}

Result<LoadedConfig> Loader::loaded_or_problems(const std::string& name) {
  for (ConfigProblem& problem : problems_) {
    if (problem.place.empty()) problem.place = name;
  }
  if (!problems_.empty()) return Error{ExitCode::config, format_problems(problems_)};
  return std::move(loaded_);
}

}  // namespace

std::string format_problems(const std::vector<ConfigProblem>& problems) {
  std::size_t width = 0;
  for (const ConfigProblem& problem : problems) width = std::max(width, problem.place.size());
  std::string text;
  for (const ConfigProblem& problem : problems) {
    text += fmt::format("{:<{}}  error  {}\n", problem.place, width, problem.message);
  }
  return text + fmt::format("{} {}", problems.size(), problems.size() == 1 ? "error" : "errors");
}

Result<LoadedConfig> load_config_text(Env& env, const std::string& text, const std::string& name,
                                      const std::vector<Override>& overrides) {
  Loader loader(env);
  loader.load_text(text, name, {});
  loader.load_environment();
  for (const Override& given : overrides) loader.load_override(given);
  return std::move(loader).finish(name);
}

Result<LoadedConfig> load_stored_config(Env& env, const std::string& text, const std::string& name,
                                        StoredConfig of, const std::vector<Override>& overrides) {
  Loader loader(env);
  loader.load_text(text, name, {});
  loader.forget_code();
  for (const Override& given : overrides) loader.load_override(given);
  return std::move(loader).finish_stored(name, of);
}

Result<LoadedConfig> load_config(Env& env, const std::string& path, const std::vector<Override>& overrides) {
  const Result<std::string> text = read_text_within(env, path, text_limits::config);
  if (!text) {
    return fail_because(text.error(), ExitCode::config,
                        "the config cannot be read: {}; give the path of a TOML file", text.error().message);
  }
  return load_config_text(env, *text, path, overrides);
}

namespace {

// Takes as `value` the word that follows the key, or VALUE where there is none.
std::string missing_value_sentence(const std::string& key, const std::string& value) {
  const std::string near = find_option(key) != nullptr ? key : suggest_key(key);
  if (!near.empty()) return fmt::format("has no value: write --{}={}", near, value);
  const std::size_t equals = value.find('=');
  const bool is_assignment = equals != std::string::npos && find_option(value.substr(0, equals)) != nullptr;
  return fmt::format("is no key: options are written --section.key=value, as in --{}",
                     is_assignment ? value : "training.steps=5");
}

}  // namespace

Result<std::vector<Override>> parse_overrides(const std::vector<std::string>& arguments) {
  std::vector<Override> overrides;
  std::vector<ConfigProblem> problems;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const std::size_t equals = argument.find('=');
    if (!argument.starts_with("--") || argument.size() == 2) {
      problems.push_back({argument, "is not an option: options are written --section.key=value"});
    } else if (equals == std::string::npos) {
      const bool next_is_value = i + 1 < arguments.size() && !arguments[i + 1].starts_with('-');
      const std::string& value = next_is_value ? arguments[++i] : "VALUE";
      problems.push_back({argument, missing_value_sentence(argument.substr(2), value)});
    } else if (equals == 2) {
      problems.push_back({argument, "names no key: options are written --section.key=value"});
    } else {
      overrides.push_back({argument.substr(2, equals - 2), argument.substr(equals + 1)});
    }
  }
  if (!problems.empty()) return Error{ExitCode::config, format_problems(problems)};
  return overrides;
}

}  // namespace holdfast::config
