#include "runtime/interop/hugging_face_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "runtime/config/model_family.h"
#include "runtime/core/json.h"
#include "runtime/model/spec.h"

namespace holdfast::interop {
namespace {

// ConfigMembers reads members and remembers the first that is missing or of another type. A null counts as
// missing.
class ConfigMembers {
 public:
  ConfigMembers(const Json& object, std::string place) : object_(object), place_(std::move(place)) {}

  std::int64_t integer(const char* key, std::optional<std::int64_t> otherwise = std::nullopt) {
    const Json* const value = find(key);
    if (value == nullptr && otherwise.has_value()) return *otherwise;
    constexpr std::uint64_t largest = std::numeric_limits<std::int32_t>::max();
    if (value != nullptr && value->is_number_unsigned() && value->get<std::uint64_t>() <= largest)
      return value->get<std::int64_t>();
    note(key, "a whole number");
    return 0;
  }
  double real(const char* key, double otherwise) {
    const Json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_number()) return value->get<double>();
    note(key, "a number");
    return otherwise;
  }
  std::string text(const char* key, const char* otherwise) {
    const Json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_string()) return value->get<std::string>();
    note(key, "a text");
    return otherwise;
  }
  bool has(const char* key) const { return object_.contains(key); }
  bool truth(const char* key, bool otherwise) {
    const Json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    note(key, "true or false");
    return otherwise;
  }
  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  // Records a problem when `key` does not have the value `expected`, because such a model is not computed.
  void expect(const char* key, bool is_expected, const std::string& expected) {
    if (is_expected || problem_.has_value()) return;
    const Json* const value = find(key);
    std::string found = "null";  // for arrays and objects, which may be deep, only the kind is shown
    if (value != nullptr) {
      found = value->is_array() || value->is_object() ? value->type_name() : value->dump_any();
    }
    problem_ = fail(ExitCode::data,
                    "{}: {} = {}, but this runtime computes models with {} = {} only; use another model",
                    place_, key, found, key, expected);
  }
  const std::string& place() const { return place_; }
  std::optional<Error> problem() const { return problem_; }

 private:
  void note(const char* key, const char* expected) {
    if (problem_.has_value()) return;
    problem_ = fail(ExitCode::data, "{}: {} is missing or not {}; expected the config.json of a model",
                    place_, key, expected);
  }
  const Json& object_;
  std::string place_;
  std::optional<Error> problem_;
};

void read_gpt2(ConfigMembers& members, ForeignShape& shape) {
  ModelConfig& model = shape.model;
  model.layers = members.integer("n_layer");
  model.heads = members.integer("n_head");
  model.kv_heads = model.heads;
  model.width = members.integer("n_embd");
  model.feed_forward = members.integer("n_inner", 4 * model.width);
  model.vocabulary = members.integer("vocab_size");
  model.positions = members.integer("n_positions", 1024);
  model.norm_epsilon = members.real("layer_norm_epsilon", 1e-5);
  model.head = members.truth("tie_word_embeddings", true) ? "tied" : "untied";
  const std::string activation = members.text("activation_function", "gelu_new");
  members.expect("activation_function", activation == "gelu_new" || activation == "gelu_pytorch_tanh",
                 "\"gelu_new\"");
  members.expect("scale_attn_weights", members.truth("scale_attn_weights", true), "true");
  members.expect("scale_attn_by_inverse_layer_idx", !members.truth("scale_attn_by_inverse_layer_idx", false),
                 "false");
  members.expect("add_cross_attention", !members.truth("add_cross_attention", false), "false");
  shape.longest_sequence = model.positions;
}

// Reads the scaling of one kind; `rotary` are the members of rope_scaling or rope_parameters.
void read_scaling(ConfigMembers& rotary, const std::string& kind, ModelConfig& model) {
  model.rope_scaling = kind;
  rotary.expect("factor", rotary.find("factor") != nullptr, "a number from 1 on");
  model.rope_factor = rotary.real("factor", 1.0);
  if (kind != "llama3") return;
  model.rope_low_frequency_factor = rotary.real("low_freq_factor", 1.0);
  model.rope_high_frequency_factor = rotary.real("high_freq_factor", 4.0);
  model.rope_original_positions = rotary.integer("original_max_position_embeddings");
}

// Reads the rotary settings. transformers 4 has rope_theta, and rope_scaling = null or the kind of scaling; 5
// has rope_parameters with both.
Result<void> read_rotary(ConfigMembers& members, const ForeignShapeOptions& options, ModelConfig& model) {
  model.rope_theta = members.real("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* const value = members.find(key);
    if (value == nullptr) continue;
    if (!value->is_object()) return fail(ExitCode::data, "{}: {} is no object", members.place(), key);
    ConfigMembers rotary(*value, fmt::format("{}: {}", members.place(), key));
    model.rope_theta = rotary.real("rope_theta", model.rope_theta);
    const std::string kind = rotary.text("rope_type", rotary.text("type", "default").c_str());
    const double share = rotary.real("partial_rotary_factor", 1.0);
    rotary.expect("partial_rotary_factor", share >= 1.0 && share <= 1.0, "1");
    const bool is_known = kind == "linear" || kind == "llama3";
    if (is_known && !options.drop_rope_scaling) read_scaling(rotary, kind, model);
    if (rotary.problem().has_value()) return *rotary.problem();
    if (is_known || kind == "default" || options.drop_rope_scaling) continue;
    return fail(
        ExitCode::data,
        "{}: {} scales rotary frequencies by \"{}\"; this runtime computes \"llama3\" and \"linear\". "
        "--rope-scaling drop takes the model with plain ones, which is another model until it is trained on",
        members.place(), key, kind);
  }
  return {};
}

// Returns the number of layers that have a sliding window, of those that layer_types names one by one (transformers 5).
std::optional<std::size_t> sliding_layers(ConfigMembers& members, std::int64_t layers) {
  const Json* const types = members.find("layer_types");
  if (types == nullptr || !types->is_array()) return std::nullopt;
  std::size_t full = 0, sliding = 0;
  for (const Json& type : *types) {
    full += type.is_string() && type.text() == "full_attention" ? 1U : 0U;
    sliding += type.is_string() && type.text() == "sliding_attention" ? 1U : 0U;
  }
  const std::size_t all = std::max(types->size(), static_cast<std::size_t>(layers));
  members.expect("layer_types", full == all || sliding == all,
                 "\"full_attention\" or \"sliding_attention\" in every layer");
  return sliding;
}

// Reads the sliding window, which all layers have or none. What a missing member means is what the classes of
// transformers mean.
void read_window(ConfigMembers& members, const ModelFamily& family, ModelConfig& model) {
  const std::optional<std::size_t> sliding = sliding_layers(members, model.layers);
  const bool is_switched_on = members.truth("use_sliding_window", false);
  if (family.foreign_window == WindowMembers::none)
    members.expect("use_sliding_window", !is_switched_on, "false");
  const bool is_null = members.has("sliding_window") && members.find("sliding_window") == nullptr;
  const bool is_used = !is_null && (family.foreign_window == WindowMembers::window ||
                                    (family.foreign_window == WindowMembers::switched && is_switched_on));
  constexpr std::int64_t usual_window = 4096, usual_first_layer = 28;
  const std::int64_t window = is_used ? members.integer("sliding_window", usual_window) : 0;
  members.expect("sliding_window", window > 0 || !is_used, "null or a number from 1 on");
  bool slides = window > 0;
  if (sliding.has_value()) {
    const bool is_decided = family.foreign_window == WindowMembers::window;
    members.expect("layer_types", slides ? *sliding > 0 || !is_decided : *sliding == 0,
                   slides ? "\"sliding_attention\" in every layer" : "\"full_attention\" in every layer");
    slides = slides && *sliding > 0;
  } else if (slides && family.foreign_window == WindowMembers::switched) {
    const std::int64_t first = members.integer("max_window_layers", usual_first_layer);
    members.expect("max_window_layers", first == 0 || first >= model.layers,
                   fmt::format("0, a window in every layer, or {}, in none,", model.layers));
    slides = first == 0;
  }
  if (slides) model.attention_window = window;
}

Result<void> read_rotary_model(ConfigMembers& members, const ModelFamily& family,
                               const ForeignShapeOptions& options, ForeignShape& shape) {
  ModelConfig& model = shape.model;
  model.layers = members.integer("num_hidden_layers");
  model.heads = members.integer("num_attention_heads");
  // A null means as many as heads in every class; what a missing member means is the class' own.
  const bool is_of_class = family.foreign_kv_heads != 0 && !members.has("num_key_value_heads");
  model.kv_heads =
      members.integer("num_key_value_heads", is_of_class ? family.foreign_kv_heads : model.heads);
  model.width = members.integer("hidden_size");
  model.feed_forward = members.integer("intermediate_size");
  model.vocabulary = members.integer("vocab_size");
  model.norm_epsilon = members.real("rms_norm_eps", 1e-6);
  model.head = members.truth("tie_word_embeddings", false) ? "tied" : "untied";
  shape.longest_sequence = members.integer("max_position_embeddings", family.foreign_positions);
  HF_TRY_VOID(read_rotary(members, options, model));
  const std::string activation = members.text("hidden_act", "silu");
  members.expect("hidden_act", activation == "silu" || activation == "swish", "\"silu\"");
  members.expect("attention_bias", !members.truth("attention_bias", false), "false");
  members.expect("mlp_bias", !members.truth("mlp_bias", false), "false");
  read_window(members, family, model);
  model.head_size = members.integer("head_dim", family.foreign_head_size);
  if (model.head_size * model.heads == model.width) model.head_size = 0;
  return {};
}

const char* name_in_torch(WeightType precision) {
  return precision == WeightType::fp32 ? "float32" : "bfloat16";
}

// Ends holds the ids of the tokens that begin and end texts, for the tokenizers that go with known
// vocabularies; any other tokenizer states them itself.
struct Ends {
  Json begin, end;
};
Ends ends_of(std::int64_t vocabulary) {
  if (vocabulary == 50257) return {50256, 50256};     // GPT-2
  if (vocabulary == 128256) return {128000, 128001};  // Llama 3
  return {};
}

// Writes the members that all models have. The data type is written twice, because transformers 4 calls it
// torch_dtype, 5 calls it dtype, and each ignores the other.
void put_common(Json& json, const Config& config, WeightType precision) {
  const Ends ends = ends_of(config.model.vocabulary);
  json["vocab_size"] = config.model.vocabulary;
  json["tie_word_embeddings"] = config.model.head == "tied";
  json["initializer_range"] = 0.02;
  json["use_cache"] = true;
  json["bos_token_id"] = ends.begin;
  json["eos_token_id"] = ends.end;
  json["torch_dtype"] = name_in_torch(precision);
  json["dtype"] = name_in_torch(precision);
}

Json gpt2_json(const ModelSpec& spec, const ModelConfig& model) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_layer", spec.layers},
          {"n_head", spec.heads},
          {"n_embd", spec.width},
          {"n_inner", spec.feed_forward},
          {"n_positions", spec.positions},
          {"n_ctx", spec.positions},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"scale_attn_weights", true},
          {"resid_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"attn_pdrop", 0.0}};
}

// Returns what transformers 4 has as rope_scaling, and 5, with the base, as rope_parameters.
Json scaling_json(const ModelConfig& model) {
  Json json{{"rope_type", model.rope_scaling}, {"factor", model.rope_factor}};
  if (model.rope_scaling != "llama3") return json;
  json["low_freq_factor"] = model.rope_low_frequency_factor;
  json["high_freq_factor"] = model.rope_high_frequency_factor;
  json["original_max_position_embeddings"] = model.rope_original_positions;
  return json;
}

// Returns the context that a model is said to be for: what it was trained on, or, where its frequencies are scaled, what
// that makes of it.
std::int64_t context_of(const Config& config) {
  const double scaled = static_cast<double>(config.model.rope_original_positions) * config.model.rope_factor;
  return std::max(config.training.sequence_length, static_cast<std::int64_t>(scaled));
}

Json rotary_json(const ModelSpec& spec, const ModelFamily& family, const Config& config) {
  const bool is_scaled = spec.rope_scaling.kind != RotaryScaling::Kind::none;
  Json parameters = is_scaled ? scaling_json(config.model) : Json{{"rope_type", "default"}};
  parameters["rope_theta"] = spec.rope_theta;
  Json json{{"architectures", {std::string(family.foreign_class)}},
            {"model_type", std::string(family.foreign_type)},
            {"num_hidden_layers", spec.layers},
            {"num_attention_heads", spec.heads},
            {"num_key_value_heads", spec.kv_heads},
            {"head_dim", spec.head_size},
            {"hidden_size", spec.width},
            {"intermediate_size", spec.feed_forward},
            {"max_position_embeddings", context_of(config)},
            {"hidden_act", "silu"},
            {"rms_norm_eps", config.model.norm_epsilon},
            {"rope_theta", spec.rope_theta},
            {"rope_scaling", is_scaled ? scaling_json(config.model) : Json(nullptr)},
            {"rope_parameters", std::move(parameters)},
            {"attention_dropout", 0.0}};
  if (family.biases != Biases::qkv) json["attention_bias"] = false;
  if (family.style == "llama") json["mlp_bias"] = false;
  if (family.foreign_window == WindowMembers::none) return json;
  const bool has_window = spec.attention_window > 0;
  json["sliding_window"] = has_window ? Json(spec.attention_window) : Json(nullptr);
  json["use_sliding_window"] = has_window && family.foreign_window == WindowMembers::switched;
  if (has_window && family.foreign_window == WindowMembers::switched) json["max_window_layers"] = 0;
  return json;
}

}  // namespace

Result<ForeignShape> parse_hugging_face_config(const std::string& text, const std::string& place,
                                               const ForeignShapeOptions& options) {
  const Json json = Json::parse_any(text);
  if (!json.is_object()) {
    return fail(ExitCode::data, "{} is not a JSON object; expected the config.json of a model", place);
  }
  ConfigMembers members(json, place);
  ForeignShape shape;
  const std::string kind = members.text("model_type", "");
  const ModelFamily* const family = find_foreign_family(kind);
  if (family == nullptr) {
    return fail(ExitCode::data, "{}: model_type is \"{}\"; the models that can be imported are {}", place,
                kind, fmt::join(family_names(), ", "));
  }
  shape.model.style = std::string(family->style);
  if (family->is_rotary) {
    HF_TRY_VOID(read_rotary_model(members, *family, options, shape));
  } else {
    read_gpt2(members, shape);
  }
  members.expect("quantization_config", members.find("quantization_config") == nullptr, "null");
  if (members.problem().has_value()) return *members.problem();
  return shape;
}

Result<std::string> hugging_face_config(const Config& config, WeightType precision) {
  const ModelSpec spec = make_model_spec(config);
  if (spec.positions > 0 && spec.kv_heads != spec.heads) {
    return fail(ExitCode::config,
                "model.kv_heads = {} is not model.heads = {}: GPT-2's class in transformers has no grouped "
                "queries, so this model has no Hugging Face form",
                spec.kv_heads, spec.heads);
  }
  const ModelFamily& family = family_of(config.model.style);
  if (spec.attention_sinks > 0) {
    return fail(ExitCode::config,
                "model.attention_sinks = {}: the classes of transformers that models go to have no attention "
                "sinks, so this model has no Hugging Face form",
                spec.attention_sinks);
  }
  if (spec.attention_window > 0 && family.foreign_window == WindowMembers::none) {
    return fail(
        ExitCode::config,
        "model.attention_window = {}: the class of model.style = \"{}\" in transformers has no sliding "
        "window, so this model has no Hugging Face form; those of mistral, qwen2 and qwen3 have one",
        spec.attention_window, config.model.style);
  }
  Json json = family.is_rotary ? rotary_json(spec, family, config) : gpt2_json(spec, config.model);
  put_common(json, config, precision);
  return json.dump(2) + "\n";
}

std::string hugging_face_generation_config(const Config& config) {
  const Ends ends = ends_of(config.model.vocabulary);
  const Json json{{"_from_model_config", true}, {"bos_token_id", ends.begin}, {"eos_token_id", ends.end}};
  return json.dump(2) + "\n";
}

}  // namespace holdfast::interop
