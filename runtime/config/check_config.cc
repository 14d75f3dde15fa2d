// Rules between keys. Each names every key involved with its value and where that was set.
#include <fmt/core.h>

#include <algorithm>

#include "runtime/config/decay_groups.h"
#include "runtime/config/freeze_list.h"
#include "runtime/config/loader.h"
#include "runtime/config/lora_targets.h"
#include "runtime/config/model_family.h"
#include "runtime/config/option_value.h"
#include "runtime/config/presets.h"

namespace holdfast::config {
namespace {

constexpr std::int64_t kLargestHead = 256;

using Origin = std::map<std::string, std::string>;

class Checker {
 public:
  Checker(const Config& config, const Origin& origin) : config_(config), origin_(origin) {}

  std::vector<ConfigProblem> check() {
    if (config_.run.directory.empty()) {
      problem({"run.directory"}, "run.directory is empty: name the directory where the run keeps its files");
    }
    check_model_keys();
    check_sources("data.sources", config_.data.sources);
    check_sources("evaluation.sources", config_.evaluation.sources);
    check_steps();
    check_verdict();
    check_lanes();
    return std::move(problems_);
  }

  std::vector<ConfigProblem> check_model() {
    check_model_keys();
    return std::move(problems_);
  }

  std::vector<ConfigProblem> check_intervals() {
    check_saves();
    return std::move(problems_);
  }

 private:
  std::string origin_of(const std::string& key) const {
    const auto found = origin_.find(key);
    return found == origin_.end() ? std::string() : found->second;
  }

  bool was_set(const std::string& key) const {
    const std::string origin = origin_of(key);
    return !origin.empty() && origin != "default";
  }

  // "model.heads = 5 (run.toml:3:9)"
  std::string shown(const std::string& key) const {
    const std::string value = value_text(*find_option(key), config_);
    const std::string origin = origin_of(key);
    return origin.empty() ? fmt::format("{} = {}", key, value)
                          : fmt::format("{} = {} ({})", key, value, origin);
  }

  void problem(std::initializer_list<std::string> keys, std::string message) {
    std::string place;
    for (const std::string& key : keys) {
      if (place.empty() && was_set(key) && !from_preset(key)) place = origin_of(key);
    }
    problems_.push_back({place, std::move(message)});
  }

  bool from_preset(const std::string& key) const { return origin_of(key).starts_with("preset "); }

  void check_model_keys() {
    if (apply_preset()) {
      check_shapes();
      check_rotary();
      check_window();
      check_freeze();
      check_lora();
    }
    check_positions();
  }
  bool apply_preset();
  void check_shapes();
  void check_head_size();
  void check_rotary();
  void check_window();
  void check_freeze();
  void check_lora();
  void check_positions();
  void check_sources(const std::string& key, const SourceList& sources);
  void check_tokenizers(const std::string& key, const SourceList& sources);
  void check_steps();
  void check_verdict();
  void check_saves();
  void check_lanes();

  Config config_;  // with the preset's shapes
  Origin origin_;
  std::vector<ConfigProblem> problems_;
};

// Returns false when the shapes are contradictory or incomplete.
bool Checker::apply_preset() {
  if (config_.model.preset.empty()) {
    bool complete = true;
    for (const char* key : {"model.layers", "model.heads", "model.width"}) {
      if (value_text(*find_option(key), config_) != "0") continue;
      problem({key}, fmt::format("{} is missing: give it, or take all shapes from a model.preset", key));
      complete = false;
    }
    return complete;
  }
  const ModelPreset* preset = find_preset(config_.model.preset);
  if (preset == nullptr) {
    problem({"model.preset"}, fmt::format("{}: there is no such preset", shown("model.preset")));
    return false;
  }
  Config fixed;
  fixed.model = preset->model;
  bool agrees = true;
  for (const Option& option : option_registry()) {
    const std::string key(option.key);
    if (section_of(key) != "model" || key == "model.preset" || key == "model.freeze") continue;
    const std::string value = value_text(option, config_);
    const bool left_out =
        value == "0" || value == "\"auto\"" || (value == default_text(option) && !was_set(key));
    if (left_out || value == value_text(option, fixed)) continue;
    problem(
        {key},
        fmt::format("{} contradicts {}, which fixes it to {}: leave out {}, or leave out the preset and give "
                    "every shape",
                    shown(key), shown("model.preset"), value_text(option, fixed), key));
    agrees = false;
  }
  TextList freeze = std::move(config_.model.freeze);
  config_.model = preset->model;
  config_.model.freeze = std::move(freeze);
  if (!origin_.empty()) {
    for (const Option& option : option_registry()) {
      const std::string key(option.key);
      if (section_of(key) == "model" && !was_set(key)) origin_[key] = fmt::format("preset {}", preset->name);
    }
  }
  return agrees;
}

void Checker::check_shapes() {
  const ModelConfig& model = config_.model;
  const std::string heads = shown("model.heads");
  const bool is_rotary = family_of(model.style).is_rotary;
  if (model.head_size != 0) {
    check_head_size();
  } else if (model.width % model.heads != 0) {
    problem({"model.heads", "model.width"},
            fmt::format("{} does not divide {}: every head needs the same number of channels", heads,
                        shown("model.width")));
  } else if (const std::int64_t head_size = model.width / model.heads; head_size > kLargestHead) {
    problem({"model.heads", "model.width"},
            fmt::format("{} with {} makes heads of {} channels: at most {} are supported, use more heads",
                        heads, shown("model.width"), head_size, kLargestHead));
  } else if (is_rotary && head_size % 2 != 0) {
    problem({"model.heads", "model.width"},
            fmt::format("{} with {} makes heads of {} channels: rotary positions need an even number", heads,
                        shown("model.width"), head_size));
  }
  if (model.kv_heads != 0 && model.heads % model.kv_heads != 0) {
    problem({"model.kv_heads", "model.heads"},
            fmt::format("{} does not divide {}: every key/value head serves the same number of heads",
                        shown("model.kv_heads"), heads));
  }
}

void Checker::check_head_size() {
  const ModelConfig& model = config_.model;
  if (!family_of(model.style).is_rotary && model.head_size * model.heads != model.width) {
    problem({"model.head_size", "model.style"},
            fmt::format(
                "{} does not go with {}, whose heads have width / heads channels: leave model.head_size out",
                shown("model.head_size"), shown("model.style")));
  } else if (model.head_size % 2 != 0 && family_of(model.style).is_rotary) {
    problem({"model.head_size"}, fmt::format("{} is odd: rotary positions need an even number of channels",
                                             shown("model.head_size")));
  }
}

void Checker::check_rotary() {
  const ModelConfig& model = config_.model;
  if (model.rope_scaling == "none") {
    for (const char* key : {"model.rope_factor", "model.rope_low_frequency_factor",
                            "model.rope_high_frequency_factor", "model.rope_original_positions"}) {
      if (value_text(*find_option(key), config_) == default_text(*find_option(key))) continue;
      problem({key},
              fmt::format("{} needs a model.rope_scaling, which is \"none\": say linear or llama3, or leave "
                          "{} out",
                          shown(key), key));
    }
    return;
  }
  if (!family_of(model.style).is_rotary) {
    problem(
        {"model.rope_scaling", "model.style"},
        fmt::format("{} does not go with {}, which has no rotary frequencies: leave model.rope_scaling out",
                    shown("model.rope_scaling"), shown("model.style")));
  }
  const Option& factor = *find_option("model.rope_factor");
  if (!was_set("model.rope_factor") && value_text(factor, config_) == default_text(factor)) {
    problem({"model.rope_scaling"},
            fmt::format("{} needs model.rope_factor: give what frequencies are divided by, which is 8 in "
                        "Llama 3.1 and 32 in Llama 3.2",
                        shown("model.rope_scaling")));
  }
  if (model.rope_scaling != "llama3") return;
  if (model.rope_original_positions == 0) {
    problem(
        {"model.rope_scaling"},
        fmt::format(
            "{} needs model.rope_original_positions: give the context that the frequencies were made for, "
            "which is 8192 in Llama 3",
            shown("model.rope_scaling")));
  }
  if (!(model.rope_low_frequency_factor < model.rope_high_frequency_factor)) {
    problem({"model.rope_low_frequency_factor", "model.rope_high_frequency_factor"},
            fmt::format("{} is not below {}: Llama 3 has 1 and 4", shown("model.rope_low_frequency_factor"),
                        shown("model.rope_high_frequency_factor")));
  }
}

void Checker::check_window() {
  const ModelConfig& model = config_.model;
  if (model.attention_sinks == 0 || model.attention_window != 0) return;
  problem(
      {"model.attention_sinks"},
      fmt::format("{} needs a model.attention_window: without one every token sees all tokens before it, the "
                  "first among them; give the window, which is 4096 in Mistral 7B, or leave "
                  "model.attention_sinks out",
                  shown("model.attention_sinks")));
}

void Checker::check_freeze() {
  const Result<FreezeList> parsed = parse_freeze_list(config_.model.freeze);
  if (!parsed.ok()) return problem({"model.freeze"}, parsed.error().message);
  const std::int64_t layers = config_.model.layers;
  for (const FreezeList::Layers& range : parsed->layers) {
    if (range.last < layers) continue;
    problem({"model.freeze", "model.layers"},
            fmt::format("{} names layer {}, which is beyond {}: layers are counted from 0",
                        shown("model.freeze"), range.last, shown("model.layers")));
  }
  const std::string& head = config_.model.head;
  const bool is_tied = head == "tied" || (head == "auto" && family_of(config_.model.style).has_tied_head);
  if (parsed->head && is_tied) {
    problem(
        {"model.freeze"},
        fmt::format("{} names the head, which is tied to the embedding: write \"embedding\", which freezes "
                    "both uses of that matrix",
                    shown("model.freeze")));
    return;
  }
  bool all_layers = true;
  for (std::int64_t layer = 0; layer < layers; ++layer) all_layers = all_layers && parsed->has_layer(layer);
  if (all_layers && parsed->head && (parsed->embedding || parsed->matrices)) {
    problem({"model.freeze"},
            fmt::format("{} freezes the whole model, so there is nothing to train: leave out "
                        "what is to be trained",
                        shown("model.freeze")));
  }
}

void Checker::check_lora() {
  const LoraConfig& lora = config_.lora;
  if (!lora.is_on()) {
    for (const char* key : {"lora.alpha", "lora.targets"}) {
      if (value_text(*find_option(key), config_) == default_text(*find_option(key))) continue;
      problem(
          {key},
          fmt::format("{} needs a lora.rank, which is 0: there are no adapters; give a rank, such as 16, or "
                      "leave {} out",
                      shown(key), key));
    }
    return;
  }
  const Result<std::vector<LoraTarget>> targets =
      parse_lora_targets(lora.targets, family_of(config_.model.style));
  if (!targets.ok()) {
    problem({"lora.targets"}, targets.error().message);
  } else if (targets->empty()) {
    problem({"lora.targets", "lora.rank"},
            fmt::format(
                "{} is empty, so there is nothing to train: name the layers that get an adapter, or \"all\"",
                shown("lora.targets")));
  }
  if (!config_.model.freeze.empty()) {
    problem({"model.freeze", "lora.rank"},
            fmt::format("{} does not go with {}: adapters are all that is trained; leave model.freeze out",
                        shown("model.freeze"), shown("lora.rank")));
  }
  if (config_.training.precision != "bf16") return;
  const double held = to_float(to_bfloat16(static_cast<float>(lora.scale())));
  if (!(held < lora.scale()) && !(held > lora.scale())) return;
  problem({"lora.alpha", "lora.rank"},
          fmt::format(
              "{} / {} is {}, which bf16 does not hold exactly: the adapters would count otherwise than in "
              "other programs; give an alpha that is a simple multiple of the rank, such as {} or {}",
              shown("lora.alpha"), shown("lora.rank"), lora.scale(), lora.rank, 2 * lora.rank));
}

void Checker::check_positions() {
  const std::int64_t positions = config_.model.positions;
  if (positions == 0) return;
  if (family_of(config_.model.style).is_rotary) {
    problem(
        {"model.positions", "model.style"},
        fmt::format("{} does not go with {}: only gpt2 has a table of positions; leave model.positions out",
                    shown("model.positions"), shown("model.style")));
  } else if (config_.training.sequence_length > positions) {
    problem({"training.sequence_length", "model.positions"},
            fmt::format("{} is larger than {}: the model has no positions beyond that",
                        shown("training.sequence_length"), shown("model.positions")));
  }
}

void Checker::check_sources(const std::string& key, const SourceList& sources) {
  if (sources.empty()) {
    if (key == "data.sources") {
      problem({key}, "data.sources is empty: give at least one source, like [{ path = \"corpus.txt\" }]");
    } else if (config_.evaluation.every_steps > 0 && !(config_.data.validation_fraction > 0.0)) {
      problem({"evaluation.every_steps", key},
              fmt::format("{} needs held-out data: give evaluation.sources or data.validation_fraction, or "
                          "leave evaluation.every_steps out",
                          shown("evaluation.every_steps")));
    }
    return;
  }
  check_tokenizers(key, sources);
  const auto weighted =
      std::ranges::count_if(sources, [](const SourceConfig& source) { return source.weight > 0.0; });
  if (weighted == 0 || weighted == std::ssize(sources)) return;
  const auto bare =
      std::ranges::find_if(sources, [](const SourceConfig& source) { return !(source.weight > 0.0); });
  problem(
      {key},
      fmt::format("{}[{}] has no weight, but {} of the {} sources have one: give every source a weight above "
                  "0, or none",
                  key, bare - sources.begin(), weighted, sources.size()));
}

void Checker::check_tokenizers(const std::string& key, const SourceList& sources) {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const SourceConfig& source = sources[i];
    const auto refuse = [&](const std::string& what) {
      problem({key}, fmt::format("{}[{}] {}", key, i, what));
    };
    const bool is_jsonl = source.format == "jsonl";
    if (source.column != SourceConfig().column && !is_jsonl)
      refuse(fmt::format("has a column, but format = \"{}\": only jsonl has columns; leave it out",
                         source.format));
    if (source.tokenizer.empty()) {
      if (is_jsonl) refuse("is JSONL without a tokenizer: give one, like tokenizer = \"tokenizer.json\"");
      if (!source.pattern.empty() || source.append_eos)
        refuse(fmt::format("has {} without a tokenizer: give tokenizer, or leave it out",
                           source.append_eos ? "append_eos" : "a pattern"));
    } else if (!is_jsonl && source.format != "text") {
      refuse(
          fmt::format("has a tokenizer, but format = \"{}\" has tokens already: leave the tokenizer out, or "
                      "give the text with format = \"text\" or \"jsonl\"",
                      source.format));
    }
  }
}

void Checker::check_steps() {
  const Result<std::vector<DecayGroup>> groups = parse_decay_groups(config_.optimizer.weight_decay_groups);
  if (!groups.ok()) problem({"optimizer.weight_decay_groups"}, groups.error().message);
  if (config_.optimizer.warmup_steps > config_.training.steps) {
    problem({"optimizer.warmup_steps", "training.steps"},
            fmt::format("{} is more than {}: the learning rate would never reach its peak",
                        shown("optimizer.warmup_steps"), shown("training.steps")));
  }
  if (config_.trace.steps > 0 && config_.trace.first_step > config_.training.steps) {
    problem({"trace.first_step", "training.steps"},
            fmt::format("{} is more than {}: no step would be recorded", shown("trace.first_step"),
                        shown("training.steps")));
  }
}

void Checker::check_verdict() {
  const VerdictConfig& verdict = config_.verdict;
  for (const auto& [key, value] :
       {std::pair("verdict.on_spike", verdict.on_spike), std::pair("verdict.on_drift", verdict.on_drift)}) {
    if (verdict.preset == "guard" || value == "tell") continue;
    problem({key, "verdict.preset"},
            fmt::format("{} contradicts {}: only the preset guard does more than tell; set verdict.preset = "
                        "\"guard\", or leave {} out",
                        shown(key), shown("verdict.preset"), key));
  }
  if (2 * verdict.drift_steps > verdict.window_steps) {
    problem(
        {"verdict.window_steps", "verdict.drift_steps"},
        fmt::format("{} is less than twice {}: a drift is the difference of two medians of so many steps; "
                    "give a larger window, fewer verdict.drift_steps, or verdict.drift_steps = 0",
                    shown("verdict.window_steps"), shown("verdict.drift_steps")));
  }
  if (verdict.skips_max > verdict.window_steps) {
    problem({"verdict.skips_max", "verdict.window_steps"},
            fmt::format("{} is more than {}: a run that skips every step learns nothing; lower "
                        "verdict.skips_max",
                        shown("verdict.skips_max"), shown("verdict.window_steps")));
  }
}

void Checker::check_saves() {
  const CheckpointConfig& saves = config_.checkpoint;
  constexpr std::int64_t shortest_ms = 1000;
  if (saves.every_ms > 0 && saves.every_ms < shortest_ms) {
    problem({"checkpoint.every"},
            fmt::format("{} is shorter than a second: give a longer time, or the number of steps between two "
                        "saves as checkpoint.every_steps",
                        shown("checkpoint.every")));
  }
  if (saves.ram_every_steps == 0 && saves.replicas == "on") {
    problem({"checkpoint.replicas", "checkpoint.ram_every_steps"},
            fmt::format("{} contradicts {}: replicas are copies of RAM snapshots; leave one of the two out",
                        shown("checkpoint.replicas"), shown("checkpoint.ram_every_steps")));
  }
  if (!saves.upload_command.empty() && !saves.upload_shard_command.empty()) {
    problem(
        {"checkpoint.upload_shard_command", "checkpoint.upload_command"},
        "checkpoint.upload_shard_command and checkpoint.upload_command are both given: a checkpoint is sent "
        "either file by file by all ranks, or whole by one; leave one of the two out");
  }
  if (saves.mtbf_ms > 0 && config_.hazard.mtbf_hours > 0.0) {
    problem(
        {"checkpoint.mtbf", "hazard.mtbf_hours"},
        fmt::format("{} and {} are both given: the first is the time between failures of the whole run, the "
                    "second that of one device, from which the run's follows; leave one of the two out",
                    shown("checkpoint.mtbf"), shown("hazard.mtbf_hours")));
  }
  const bool fixed = saves.every_steps != CheckpointConfig::interval_auto;
  if (!fixed || saves.keep_every_steps == 0) return;
  if (saves.every_steps == 0 || saves.keep_every_steps % saves.every_steps != 0) {
    problem({"checkpoint.keep_every_steps", "checkpoint.every_steps"},
            fmt::format("{} contradicts {}: no save is due after those steps; give checkpoint.every_steps a "
                        "number that divides them, or leave it out",
                        shown("checkpoint.keep_every_steps"), shown("checkpoint.every_steps")));
  }
}

void Checker::check_lanes() {
  const ParallelConfig& parallel = config_.parallel;
  if (parallel.lanes != 0 && parallel.lanes < parallel.data) {
    problem(
        {"parallel.data", "parallel.lanes"},
        fmt::format(
            "{} is more than {}: every rank needs a lane; lower parallel.data, or give more parallel.lanes "
            "(a run that is resumed is then cut anew)",
            shown("parallel.data"), shown("parallel.lanes")));
  }
  if (parallel.data != 0 && parallel.data < config_.elastic.min_data_parallel) {
    problem(
        {"elastic.min_data_parallel", "parallel.data"},
        fmt::format("{} is more than {}: a run cannot shrink to more copies of the model than it starts with",
                    shown("elastic.min_data_parallel"), shown("parallel.data")));
  }
}

}  // namespace

std::vector<ConfigProblem> check_config(const Config& config,
                                        const std::map<std::string, std::string>& origin) {
  return Checker(config, origin).check();
}

std::vector<ConfigProblem> check_model(const Config& config,
                                       const std::map<std::string, std::string>& origin) {
  return Checker(config, origin).check_model();
}

std::vector<ConfigProblem> check_intervals(const Config& config,
                                           const std::map<std::string, std::string>& origin) {
  return Checker(config, origin).check_intervals();
}

}  // namespace holdfast::config
