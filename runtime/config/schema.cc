// The option registry as a JSON Schema (draft 2020-12), for editors that check and complete TOML.
#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "runtime/config/document.h"
#include "runtime/config/option_value.h"
#include "runtime/core/json.h"

namespace holdfast::config {
namespace {

Json source_schema() {
  Json source;
  source["type"] = "object";
  source["additionalProperties"] = false;
  source["required"] = {"path"};
  source["properties"]["path"]["type"] = "string";
  source["properties"]["format"]["enum"] = source_formats();
  source["properties"]["weight"] = {{"type", "number"}, {"minimum", 0}};
  for (const char* name : {"tokenizer", "pattern", "column"}) source["properties"][name]["type"] = "string";
  source["properties"]["append_eos"]["type"] = "boolean";
  return source;
}

Json kernel_rule_schema(const Option& option) {
  Json rule;
  rule["type"] = "object";
  rule["additionalProperties"] = false;
  rule["required"] = {"op", "use"};
  for (const char* name : op_names) rule["properties"]["op"]["enum"].push_back(name);
  rule["properties"]["use"]["type"] = "string";
  rule["properties"]["layers"]["type"] = {"string", "integer"};
  rule["properties"]["where"] = {{"type", "object"},
                                 {"additionalProperties", {{"type", {"string", "integer", "boolean"}}}}};
  if (option.has_every) rule["properties"]["every"] = {{"type", "integer"}, {"minimum", 1}};
  return rule;
}

// Limits as integers where they are integers, so that editors show 1 and not 1.0.
Json limit(const Option& option, double value) {
  constexpr double int64_end = 9223372036854775807.0;  // rounds up to 2^63
  if (option.type != OptionType::integer) return value;
  if (value >= int64_end) return std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(value);
}

Json option_schema(const Option& option) {
  Config defaults;
  void* field = option.field(defaults);
  Json schema;
  switch (option.type) {
    case OptionType::text:
      schema["type"] = "string";
      schema["default"] = *static_cast<std::string*>(field);
      break;
    case OptionType::texts:
      schema["type"] = "array";
      schema["items"]["type"] = "string";
      break;
    case OptionType::choice:
      schema["enum"] = option.choices;
      schema["default"] = *static_cast<std::string*>(field);
      if (std::ranges::count(schema["enum"], schema["default"]) == 0)
        schema["enum"].push_back(schema["default"]);
      break;
    case OptionType::integer:
      schema["type"] = "integer";
      schema["default"] = *static_cast<std::int64_t*>(field);
      if (option.or_auto) {  // "pattern" is about strings alone, the limits about numbers
        schema["type"] = {"integer", "string"};
        schema["pattern"] = "^auto$";
        if (schema["default"] == auto_value) schema["default"] = "auto";
      }
      break;
    case OptionType::real:
      schema["type"] = "number";
      schema["default"] = *static_cast<double*>(field);
      break;
    case OptionType::boolean:
      schema["type"] = "boolean";
      schema["default"] = *static_cast<bool*>(field);
      break;
    case OptionType::duration:
      schema["type"] = {"string", "number"};
      break;
    case OptionType::sources:
      schema["type"] = "array";
      schema["items"] = source_schema();
      break;
    case OptionType::kernel_rules:
      schema["type"] = "array";
      schema["items"] = kernel_rule_schema(option);
      break;
  }
  if (option.type == OptionType::integer || option.type == OptionType::real) {
    schema["minimum"] = limit(option, option.minimum);
    schema["maximum"] = limit(option, option.maximum);
  }
  schema["description"] = option.help;
  return schema;
}

}  // namespace

std::string options_schema() {
  Json root;
  root["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  root["title"] = "Holdfast run";
  root["type"] = "object";
  root["additionalProperties"] = false;
  Json& properties = root["properties"];
  properties["include"] = {{"type", {"string", "array"}},
                           {"items", {{"type", "string"}}},
                           {"description", "Files whose values are taken first, relative to this one"}};
  for (const Option& option : option_registry()) {
    const std::string section(section_of(option.key));
    if (section.empty()) {
      properties[std::string(option.key)] = option_schema(option);
      continue;
    }
    Json& table = properties[section];
    table["type"] = "object";
    table["additionalProperties"] = false;
    table["properties"][std::string(option.key.substr(section.size() + 1))] = option_schema(option);
  }
  return root.dump(2) + "\n";
}

}  // namespace holdfast::config
