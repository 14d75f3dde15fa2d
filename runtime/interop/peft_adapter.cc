#include "runtime/interop/peft_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "runtime/config/lora_targets.h"
#include "runtime/config/model_family.h"
#include "runtime/core/json.h"
#include "runtime/interop/hugging_face_folder.h"
#include "runtime/model/adapter_spec.h"

namespace holdfast::interop {
namespace {

constexpr std::uint64_t peft_config_bytes_max = std::uint64_t{1} << 20;
// These begin the names of a layer's modules in a PeftModel.
constexpr const char* rotary_layers = "base_model.model.model.layers";
constexpr const char* gpt2_layers = "base_model.model.transformer.h";

std::string module_of(const ModelFamily& family, std::int64_t layer, LoraTarget target) {
  return fmt::format("{}.{}.{}", family.is_rotary ? rotary_layers : gpt2_layers, layer,
                     foreign_name_of(target, family));
}

// Returns the name by which PEFT finds the modules: the last word where no other module ends with it.
std::string target_module(LoraTarget target, const ModelFamily& family) {
  const std::string name = foreign_name_of(target, family);
  return family.is_rotary ? name.substr(name.find('.') + 1) : name;
}

// Returns the first member that asks for what is not computed here, as a sentence; empty: there is none.
std::string unknown_kind(const Json& json) {
  const auto is_set = [&json](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) return false;
    if (found->is_boolean()) return found->get<bool>();
    if (found->is_array() || found->is_object()) return !found->empty();
    return true;
  };
  if (json.contains("peft_type") && json["peft_type"] != Json("LORA")) return "its peft_type is not \"LORA\"";
  for (const char* key : {"use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern"}) {
    if (is_set(key)) return fmt::format("it has {}", key);
  }
  if (is_set("bias") && json["bias"] != Json("none")) return "it trains biases";
  return "";
}

// Reads rank and scale.
Result<LoraConfig> parse_peft_config(const std::string& text, const std::string& place) {
  const Json json = Json::parse_any(text);
  if (!json.is_object())
    return fail(ExitCode::data, "{} is not a JSON object; expected what PEFT writes beside an adapter",
                place);
  if (const std::string kind = unknown_kind(json); !kind.empty()) {
    return fail(ExitCode::config,
                "{}: {}, and only plain LoRA is known here; merge the adapter into its model with PEFT "
                "(merge_and_unload) and import that",
                place, kind);
  }
  constexpr std::uint64_t rank_max = 4096;
  const auto rank = json.find("r"), alpha = json.find("lora_alpha");
  const bool has_rank = rank != json.end() && rank->is_number_unsigned() && rank->get<std::uint64_t>() >= 1 &&
                        rank->get<std::uint64_t>() <= rank_max;
  const bool has_alpha = alpha != json.end() && alpha->is_number() && alpha->get<double>() > 0.0;
  if (!has_rank || !has_alpha) {
    return fail(ExitCode::data,
                "{}: {}; expected a whole number from 1 to {} as r, and a number above 0 as lora_alpha",
                place, has_rank ? "it has no usable lora_alpha" : "it has no usable r", rank_max);
  }
  return LoraConfig{.rank = rank->get<std::int64_t>(), .alpha = alpha->get<double>(), .targets = {}};
}

// Returns the targets that the first layer has adapters of.
std::vector<std::string> targets_in(const WeightFiles& weights, const ModelFamily& family) {
  std::vector<std::string> targets;
  for (const LoraTarget target : lora_targets_of(family)) {
    if (weights.find(module_of(family, 0, target) + ".lora_A.weight") != nullptr)
      targets.emplace_back(name_of(target));
  }
  return targets;
}

}  // namespace

std::vector<ForeignTensor> peft_tensors(const Config& config) {
  const ModelSpec spec = make_model_spec(config);
  const ModelFamily& family = family_of(config.model.style);
  std::vector<ForeignTensor> tensors;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    for (const AdapterSpec& adapter : adapters_of(spec, layer)) {
      const std::string module = module_of(family, layer, adapter.target);
      tensors.push_back({.name = module + ".lora_A.weight",
                         .parameter = adapter.a(),
                         .rows = adapter.rank,
                         .columns = adapter.inputs});
      tensors.push_back({.name = module + ".lora_B.weight",
                         .parameter = adapter.b(),
                         .rows = adapter.outputs,
                         .columns = adapter.rank});
    }
  }
  return tensors;
}

std::string peft_config(const Config& config) {
  const ModelSpec spec = make_model_spec(config);
  const ModelFamily& family = family_of(config.model.style);
  std::vector<std::string> modules;
  for (const LoraTarget target : spec.lora.targets) modules.push_back(target_module(target, family));
  const double alpha = config.lora.scale() * static_cast<double>(config.lora.rank);
  const Json json{
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", nullptr},
      {"r", config.lora.rank},
      {"lora_alpha", alpha > std::floor(alpha) ? Json(alpha) : Json(static_cast<std::int64_t>(alpha))},
      {"lora_dropout", 0.0},
      {"target_modules", modules},
      {"bias", "none"},
      {"fan_in_fan_out", !family.is_rotary},  // GPT-2's modules have their weights transposed
      {"modules_to_save", nullptr},
      {"use_rslora", false},
      {"use_dora", false},
      {"init_lora_weights", true},
      {"inference_mode", true}};
  return json.dump(2) + "\n";
}

Result<PeftAdapter> open_peft_adapter(Env& env, const std::string& folder, const Config& config) {
  const std::string place = folder + "/" + peft_config_file;
  HF_TRY(const std::string text, read_small_text(env, place, peft_config_bytes_max));
  PeftAdapter adapter;
  HF_TRY(adapter.lora, parse_peft_config(text, place));
  HF_TRY_VOID(
      add_safetensors(env, folder + "/" + peft_weights_file, /*has_tied_head=*/false, adapter.weights));
  const ModelFamily& family = family_of(config.model.style);
  adapter.lora.targets = targets_in(adapter.weights, family);
  if (adapter.lora.targets.empty()) {
    return fail(ExitCode::config,
                "{} holds the adapters of another model: none is of \"{}\" or another module of model.style "
                "= \"{}\"; "
                "give the adapters of this model, or the model that they were made for",
                folder, module_of(family, 0, lora_targets_of(family).front()), family.style);
  }
  Config adapted = config;
  adapted.lora = adapter.lora;
  adapter.tensors = peft_tensors(adapted);
  const Result<void> matched = match_tensors(adapter.weights, folder, adapter.tensors);
  if (!matched.ok()) {
    return fail(ExitCode::config, "{} holds the adapters of another model: {}", folder,
                matched.error().message);
  }
  return adapter;
}

}  // namespace holdfast::interop
