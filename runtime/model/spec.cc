#include "runtime/model/spec.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <ranges>
#include <string_view>

#include "kernels/registry.h"
#include "runtime/config/decay_groups.h"
#include "runtime/config/loader.h"

namespace holdfast::model {
namespace {

constexpr const char* tied_weight = "embedding.token.weight";

std::uint64_t u64(std::int64_t value) {
  return static_cast<std::uint64_t>(value);
}

std::string layer_name(std::int64_t layer, const char* part) {
  return fmt::format("layers.{}.{}", layer, part);
}

// "layers.12.attention.qkv.weight" -> 12; -1 for a tensor of the ends.
std::int64_t layer_of(const std::string& name) {
  constexpr std::string_view prefix = "layers.";
  if (!name.starts_with(prefix)) return -1;
  std::int64_t layer = 0;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
  return layer;
}

bool is_frozen(const FreezeList& freeze, const ParameterSpec& parameter) {
  if (is_adapter(parameter.name)) return false;
  if (freeze.matrices && parameter.shape.size() > 1) return true;
  if (const std::int64_t layer = layer_of(parameter.name); layer >= 0) return freeze.has_layer(layer);
  return parameter.name.starts_with("embedding.") ? freeze.embedding : freeze.head;
}

// Collects the tensors of a model in forward order.
class ParameterList {
 public:
  explicit ParameterList(const ModelSpec& spec) : spec_(spec) {}

  void matrix(std::string name, std::int64_t rows, std::int64_t columns, float deviation) {
    specs_.push_back({.name = std::move(name), .shape = {u64(rows), u64(columns)}, .deviation = deviation});
  }
  void vocabulary_matrix(std::string name) {
    matrix(std::move(name), spec_.padded_vocabulary, spec_.width, base_deviation);
    specs_.back().cut = Cut::rows;
    specs_.back().padding_elements = u64((spec_.padded_vocabulary - spec_.vocabulary) * spec_.width);
  }
  void vector(std::string name, std::int64_t elements, float constant) {
    specs_.push_back({.name = std::move(name), .shape = {u64(elements)}, .constant = constant});
  }
  // Split by its outputs: each slice makes its own part of every group of them.
  void column_linear(const std::string& name, const std::vector<std::uint64_t>& row_groups, float deviation,
                     bool has_bias) {
    std::uint64_t rows = 0;
    for (const std::uint64_t group : row_groups) rows += group;
    linear(name, static_cast<std::int64_t>(rows), spec_.width, deviation, has_bias);
    for (ParameterSpec* parameter = &specs_.back(); parameter->name.starts_with(name + "."); --parameter) {
      parameter->cut = Cut::rows;
      parameter->row_groups = row_groups;
    }
  }
  // Adds a linear layer split by its inputs: each slice computes a part of every output, and the bias belongs
  // to no slice.
  void row_linear(const std::string& name, std::int64_t columns, float deviation) {
    linear(name, spec_.width, columns, deviation, spec_.biases == Biases::all);
    specs_[specs_.size() - (spec_.biases == Biases::all ? 2 : 1)].cut = Cut::columns;
  }
  // Adds the adapters of a layer's linear layer, which begin as those of PEFT do: A as Kaiming uniform with a = sqrt(5),
  // which is uniform in +-1 / sqrt(inputs), and B with zeros.
  void adapters(std::int64_t layer, const char* linear) {
    for (const AdapterSpec& adapter : adapters_of(spec_, layer)) {
      if (adapter.layer != layer_name(layer, linear)) continue;
      const bool by_outputs = adapter.is_split_by_outputs();
      specs_.push_back({.name = adapter.a(),
                        .shape = {adapter.rank, adapter.inputs},
                        .bound = 1.0F / std::sqrt(static_cast<float>(adapter.inputs)),
                        .cut = by_outputs ? Cut::none : Cut::columns});
      specs_.push_back({.name = adapter.b(),
                        .shape = {adapter.outputs, adapter.rank},
                        .cut = by_outputs ? Cut::rows : Cut::none,
                        .row_groups = adapter.row_groups});
    }
  }
  void norm(const std::string& name) {
    vector(name + ".weight", spec_.width, 1.0F);
    if (spec_.norm == NormKind::layer_norm) vector(name + ".bias", spec_.width, 0.0F);
  }
  std::vector<ParameterSpec> take() { return std::move(specs_); }

  static constexpr float base_deviation = 0.02F;

 private:
  void linear(const std::string& name, std::int64_t rows, std::int64_t columns, float deviation,
              bool has_bias) {
    matrix(name + ".weight", rows, columns, deviation);
    if (has_bias) vector(name + ".bias", rows, 0.0F);
  }

  const ModelSpec& spec_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace

std::uint64_t ParameterSpec::elements() const {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) count *= extent;
  return count;
}

std::vector<std::uint64_t> ParameterSpec::slice_shape(int slices) const {
  std::vector<std::uint64_t> part = shape;
  if (cut != Cut::none) part[cut == Cut::rows ? 0 : 1] /= static_cast<std::uint64_t>(slices);
  return part;
}

std::vector<SliceRun> runs_of_slice(const ParameterSpec& parameter, int slice, int slices,
                                    std::uint64_t first, std::uint64_t count) {
  const std::uint64_t end = first + count;
  if (parameter.cut == Cut::none || slices == 1)
    return {{.tensor_offset = first, .slice_offset = first, .count = count}};
  const auto k = static_cast<std::uint64_t>(slices), index = static_cast<std::uint64_t>(slice);
  const std::uint64_t columns = parameter.shape.size() > 1 ? parameter.shape[1] : 1;
  std::vector<SliceRun> runs;
  const auto add = [&](std::uint64_t tensor_offset, std::uint64_t slice_offset, std::uint64_t size) {
    const std::uint64_t begin = std::max(first, slice_offset), stop = std::min(end, slice_offset + size);
    if (begin >= stop) return;
    runs.push_back({.tensor_offset = tensor_offset + (begin - slice_offset),
                    .slice_offset = begin,
                    .count = stop - begin});
  };
  if (parameter.cut == Cut::columns) {
    const std::uint64_t part = columns / k;
    const std::uint64_t last = std::min(parameter.shape[0], (end + part - 1) / part);
    for (std::uint64_t row = first / part; row < last; ++row)
      add(row * columns + index * part, row * part, part);
    return runs;
  }
  const std::vector<std::uint64_t> whole = {parameter.shape[0]};
  std::uint64_t before = 0;  // rows of the groups before
  for (const std::uint64_t rows : parameter.row_groups.empty() ? whole : parameter.row_groups) {
    const std::uint64_t part = rows / k;
    add((before + index * part) * columns, before / k * columns, part * columns);
    before += rows;
  }
  return runs;
}

bool may_compose(OpId op, std::string_view name, Recompute recompute) {
  if (recompute != Recompute::selective) return true;
  return std::ranges::any_of(kernel_registry().of(op), [name](const Implementation* each) {
    return each->name == name && each->same_bits_as_portable;
  });
}

namespace {

// Returns the calls of composed ops for which an implementation is named.
std::vector<ModelSpec::ComposedCalls> composed_calls(const Config& config) {
  const Recompute recompute = recompute_of(config);
  std::vector<ModelSpec::ComposedCalls> calls;
  for (std::size_t index = 0; index < op_count; ++index) {
    const auto op = static_cast<OpId>(index);
    if (!is_composed(op)) continue;
    const std::string& name = config.kernels.implementations[index];
    if (name != "auto" && may_compose(op, name, recompute)) calls.push_back({.op = op, .filter = {}});
    for (const KernelRuleConfig& rule : config.kernels.rules) {
      if (rule.op != name_of(op) || !may_compose(op, rule.use, recompute)) continue;
      std::vector<ShapeCondition> where;
      for (const ShapeConditionConfig& each : rule.where)
        where.push_back({.field = each.field, .value = each.value});
      // The registry refuses those that are no rules.
      Result<CallFilter> filter = CallFilter::parse(op, rule.layers, where);
      if (filter.ok()) calls.push_back({.op = op, .filter = std::move(filter).value()});
    }
  }
  return calls;
}

}  // namespace

ModelSpec make_model_spec(const Config& config) {
  const ModelConfig& model = config.model;
  ModelSpec spec;
  const ModelFamily& family = family_of(model.style);
  spec.layers = model.layers;
  spec.heads = model.heads;
  spec.kv_heads = model.kv_heads;
  spec.width = model.width;
  spec.head_size = model.head_size != 0 ? model.head_size : model.width / model.heads;
  spec.feed_forward = model.feed_forward;
  spec.vocabulary = model.vocabulary;
  spec.padded_vocabulary = padded_vocabulary(model);
  const std::int64_t positions = model.positions > 0 ? model.positions : config.training.sequence_length;
  spec.positions = family.is_rotary ? 0 : positions;
  spec.norm = family.norm;
  spec.activation = family.activation;
  spec.biases = family.biases;
  spec.has_head_norms = family.has_head_norms;
  spec.tied_head = model.head == "tied";
  spec.rope_theta = model.rope_theta;
  spec.rope_scaling = {.kind = model.rope_scaling == "llama3"   ? RotaryScaling::Kind::llama3
                               : model.rope_scaling == "linear" ? RotaryScaling::Kind::linear
                                                                : RotaryScaling::Kind::none,
                       .factor = model.rope_factor,
                       .low_factor = model.rope_low_frequency_factor,
                       .high_factor = model.rope_high_frequency_factor,
                       .original_positions = static_cast<double>(model.rope_original_positions)};
  spec.attention_window = model.attention_window;
  spec.attention_sinks = model.attention_sinks;
  spec.norm_epsilon = static_cast<float>(model.norm_epsilon);
  spec.dtype = precision_of(config);
  spec.head_rows = config.training.head_rows;
  spec.tensor_lanes = static_cast<int>(std::max<std::int64_t>(1, config.parallel.tensor_lanes));
  Result<FreezeList> freeze = parse_freeze_list(config.model.freeze);
  HF_CHECK(freeze.ok(), "{}", freeze.error().message);  // check_config has parsed it
  spec.freeze = std::move(freeze).value();
  if (config.lora.is_on()) {
    Result<std::vector<LoraTarget>> targets = parse_lora_targets(config.lora.targets, family);
    HF_CHECK(targets.ok(), "{}", targets.error().message);  // check_config has parsed them
    spec.lora = {.rank = config.lora.rank,
                 .scale = static_cast<float>(config.lora.scale()),
                 .targets = std::move(targets).value()};
    spec.freeze = {.embedding = true, .head = true, .layers = {{.first = 0, .last = spec.layers - 1}}};
  }
  spec.composed = composed_calls(config);
  return spec;
}

double rotary_frequency(const ModelSpec& spec, std::int64_t pair) {
  const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(spec.head_size);
  const double frequency = std::pow(spec.rope_theta, exponent);
  const RotaryScaling& scaling = spec.rope_scaling;
  switch (scaling.kind) {
    case RotaryScaling::Kind::none:
      return frequency;
    case RotaryScaling::Kind::linear:
      return frequency / scaling.factor;
    case RotaryScaling::Kind::llama3: {
      const double waves = scaling.original_positions * frequency / (2.0 * std::numbers::pi);
      const double kept =
          std::clamp((waves - scaling.low_factor) / (scaling.high_factor - scaling.low_factor), 0.0, 1.0);
      return (1.0 - kept) * frequency / scaling.factor + kept * frequency;
    }
  }
  return frequency;
}

ModelSpec ModelSpec::slice() const {
  ModelSpec spec = *this;
  spec.heads /= tensor_lanes;
  spec.kv_heads /= tensor_lanes;
  spec.feed_forward /= tensor_lanes;
  spec.padded_vocabulary /= tensor_lanes;
  return spec;
}

DType precision_of(const Config& config) {
  return config.training.precision == "bf16" ? DType::bf16 : DType::fp32;
}

Recompute recompute_of(const Config& config) {
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    if (config.training.recompute == name_of(recompute)) return recompute;
  }
  return Recompute::none;
}

const char* name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "none";
    case Recompute::selective:
      return "selective";
    case Recompute::full:
      return "full";
  }
  return "unknown";
}

std::vector<AdapterSpec> adapters_of(const ModelSpec& spec, std::int64_t layer) {
  return adapters_of(spec.lora,
                     {.width = u64(spec.width),
                      .queries = u64(spec.attention_width()),
                      .keys = u64(spec.kv_width()),
                      .feed_forward = u64(spec.feed_forward),
                      .is_gated = spec.activation == ActivationKind::swiglu},
                     layer);
}

std::vector<ParameterSpec> parameter_specs(const ModelSpec& spec) {
  ParameterList list(spec);
  // Projections into the residual stream start smaller, so that its variance does not grow with depth
  // (GPT-2).
  const float base = ParameterList::base_deviation;
  const float residual = base / std::sqrt(2.0F * static_cast<float>(spec.layers));
  const std::uint64_t queries = u64(spec.attention_width()), keys = u64(spec.kv_width());
  const bool gated = spec.activation == ActivationKind::swiglu;
  const std::vector<std::uint64_t> ups(gated ? 2 : 1, u64(spec.feed_forward));
  list.vocabulary_matrix(tied_weight);
  if (spec.positions > 0) list.matrix("embedding.position.weight", spec.positions, spec.width, base);
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    list.norm(layer_name(layer, "attention_norm"));
    list.column_linear(layer_name(layer, "attention.qkv"), {queries, keys, keys}, base,
                       spec.biases != Biases::none);
    list.adapters(layer, "attention.qkv");
    if (spec.has_head_norms) {
      list.vector(layer_name(layer, "attention.query_norm.weight"), spec.head_size, 1.0F);
      list.vector(layer_name(layer, "attention.key_norm.weight"), spec.head_size, 1.0F);
    }
    list.row_linear(layer_name(layer, "attention.output"), spec.attention_width(), residual);
    list.adapters(layer, "attention.output");
    list.norm(layer_name(layer, "feed_forward_norm"));
    list.column_linear(layer_name(layer, "feed_forward.up"), ups, base, spec.biases == Biases::all);
    list.adapters(layer, "feed_forward.up");
    list.row_linear(layer_name(layer, "feed_forward.down"), spec.feed_forward, residual);
    list.adapters(layer, "feed_forward.down");
  }
  list.norm("final_norm");
  if (!spec.tied_head) list.vocabulary_matrix("head.weight");
  std::vector<ParameterSpec> parameters = list.take();
  for (ParameterSpec& parameter : parameters) parameter.is_frozen = is_frozen(spec.freeze, parameter);
  return parameters;
}

std::uint64_t parameter_count(const ModelSpec& spec) {
  ModelSpec all = spec;
  all.freeze = {};
  return trained_parameter_count(all);
}

std::uint64_t trained_parameter_count(const ModelSpec& spec) {
  std::uint64_t count = 0;
  for (const ParameterSpec& parameter : parameter_specs(spec))
    count += parameter.is_frozen ? 0 : parameter.elements() - parameter.padding_elements;
  return count;
}

Result<void> check_decay_groups(const Config& config) {
  HF_TRY(const std::vector<DecayGroup> groups, parse_decay_groups(config.optimizer.weight_decay_groups));
  if (groups.empty()) return {};
  const std::vector<ParameterSpec> parameters = parameter_specs(make_model_spec(config));
  for (const DecayGroup& group : groups) {
    if (std::ranges::any_of(parameters, [&](const ParameterSpec& parameter) {
          return matches_glob(group.pattern, parameter.name);
        }))
      continue;
    std::vector<std::string> names;  // those of a layer once
    for (const ParameterSpec& parameter : parameters) {
      const std::size_t after_layer = parameter.name.find('.', std::string_view("layers.").size());
      std::string name =
          layer_of(parameter.name) < 0 ? parameter.name : "layers.*" + parameter.name.substr(after_layer);
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
    }
    return fail(ExitCode::config,
                "optimizer.weight_decay_groups: \"{}\" matches no tensor of the model, so it would change "
                "nothing; the model has {}. Correct the pattern, or leave the entry out",
                group.pattern, fmt::join(names, ", "));
  }
  return {};
}

std::uint64_t state_bytes(const ModelSpec& spec, const OptimizerConfig& optimizer) {
  return parameter_count(spec) * sizeof(float) + trained_parameter_count(spec) * optimizer.kept_bytes();
}

std::int64_t lowest_trained_layer(const ModelSpec& spec) {
  if (spec.lora.is_on()) return 0;
  const bool trains_embedding = !spec.freeze.embedding && !spec.freeze.matrices;
  std::int64_t layer = trains_embedding ? -1 : 0;
  while (layer >= 0 && layer < spec.layers && spec.freeze.has_layer(layer)) ++layer;
  return layer;
}

namespace {

bool is_in_part(const Bucket& bucket, const ModelPart& part) {
  const std::string& name = bucket.tensors.front().name;
  if (const std::int64_t layer = layer_of(name); layer >= 0)
    return part.first_layer <= layer && layer < part.end_layer;
  const bool is_embedding = name.starts_with("embedding.") && bucket.tied_to < 0;
  return is_embedding ? part.has_embedding : part.has_head;
}

// Connects the two ends of a tied weight after some buckets of the whole model have been left out. A frozen
// one has no gradient, but where its ends are on two stages the head's gets the weight from the other.
void connect_tied_weight(std::vector<Bucket>& stage) {
  const auto find = [&stage](bool tied) {
    return std::ranges::find_if(stage, [tied](const Bucket& bucket) {
      return bucket.tensors.front().name == tied_weight && (bucket.tied_to >= 0) == tied;
    });
  };
  const auto real = find(false), tied = find(true);
  if (tied != stage.end() && real != stage.end()) {
    tied->tied_to = static_cast<int>(real - stage.begin());
    if (tied->is_frozen()) stage.erase(tied);
  } else if (tied != stage.end()) {
    tied->tied_to = -1;
    tied->is_exported = true;
  } else if (real != stage.end()) {
    Bucket imported = *real;
    imported.tied_to = static_cast<int>(real - stage.begin());
    imported.is_imported = true;
    const auto is_frozen = [](const Bucket& bucket) { return bucket.is_frozen(); };
    stage.insert(imported.is_frozen() ? stage.end() : std::ranges::find_if(stage, is_frozen),
                 std::move(imported));
  }
}

// Returns the tensors of a parameter that a rank has: one, or its slices.
std::vector<BucketTensor> tensors_of(const ParameterSpec& parameter, const TensorShare& share) {
  BucketTensor tensor{.name = parameter.name,
                      .shape = parameter.shape,
                      .global_shape = parameter.shape,
                      // No decay on norms and biases, which are exactly the vectors.
                      .weight_decay = parameter.shape.size() > 1,
                      .is_frozen = parameter.is_frozen};
  if (parameter.cut == Cut::none || share.slices == 1) return {tensor};
  std::vector<BucketTensor> slices;
  tensor.shape = parameter.slice_shape(share.slices);
  tensor.slices = share.slices;
  for (tensor.slice = share.first; tensor.slice < share.first + share.count; ++tensor.slice)
    slices.push_back(tensor);
  return slices;
}

// Returns the name of a tensor's bucket: every half layer is a bucket, the ends are buckets of their own.
std::string bucket_name(const std::string& parameter) {
  if (parameter.starts_with("layers.")) {
    const bool attention = parameter.find(".attention") != std::string::npos;
    return parameter.substr(0, parameter.find('.', 7)) + (attention ? ".attention" : ".feed_forward");
  }
  if (parameter.starts_with("final_norm") || parameter == "head.weight") return "head";
  return parameter.substr(0, parameter.find(".weight"));
}

// Returns the buckets of the whole model in backward order. The frozen tensors of a half layer that is trained
// in part are a bucket of their own.
std::vector<Bucket> model_buckets(const ModelSpec& spec, const TensorShare& share) {
  struct Part {
    std::string name;
    Bucket trained, frozen;
  };
  std::vector<Part> forward;
  for (const ParameterSpec& parameter : parameter_specs(spec)) {
    std::string name = bucket_name(parameter.name);
    if (forward.empty() || forward.back().name != name)
      forward.push_back({.name = std::move(name), .trained = {}, .frozen = {}});
    Bucket& bucket = parameter.is_frozen ? forward.back().frozen : forward.back().trained;
    for (BucketTensor& tensor : tensors_of(parameter, share)) bucket.tensors.push_back(std::move(tensor));
  }
  std::vector<Bucket> backward;
  const auto add = [&backward](Bucket& bucket) {
    if (!bucket.tensors.empty()) backward.push_back(std::move(bucket));
  };
  if (spec.tied_head) {
    Bucket tied = forward.front().trained.tensors.empty() ? forward.front().frozen : forward.front().trained;
    tied.tied_to = 0;  // connect_tied_weight() says to which
    add(tied);
  }
  for (Part& part : std::views::reverse(forward)) {
    add(part.trained);
    add(part.frozen);
  }
  return backward;
}

}  // namespace

std::vector<Bucket> backward_buckets(const ModelSpec& spec, std::span<const ModelPart> parts,
                                     const TensorShare& share) {
  std::vector<Bucket> model = model_buckets(spec, share);
  std::vector<Bucket> stage;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    for (Bucket& bucket : model) {
      const bool is_moved = bucket.tensors.empty();  // each is in one part
      if (!is_moved && is_in_part(bucket, *part)) stage.push_back(std::move(bucket));
    }
  }
  std::ranges::stable_partition(stage, [](const Bucket& bucket) { return !bucket.is_frozen(); });
  if (spec.tied_head) connect_tied_weight(stage);
  return stage;
}

std::vector<Bucket> backward_buckets(const ModelSpec& spec) {
  return backward_buckets(spec, all_slices(spec.tensor_lanes));
}

std::vector<Bucket> backward_buckets(const ModelSpec& spec, const TensorShare& share) {
  const ModelPart whole = whole_model(spec);
  return backward_buckets(spec, std::span(&whole, 1), share);
}

namespace {

// Returns the length of a sequence without a window whose attention is as much work for a token: twice the mean number
// of tokens that one sees.
double length_of_equal_work(const ModelSpec& spec, std::int64_t sequence_length) {
  const auto length = static_cast<double>(sequence_length),
             window = static_cast<double>(spec.attention_window);
  if (spec.attention_window == 0 || window >= length) return length;
  const double hidden = std::max(0.0, length - window - static_cast<double>(spec.attention_sinks));
  return length - hidden * hidden / length;
}

}  // namespace

double flops_per_token(const ModelSpec& spec, std::int64_t sequence_length) {
  const std::int64_t layer_weights =
      spec.width * (spec.qkv_width() + spec.attention_width() + spec.up_width() + spec.feed_forward);
  const std::int64_t head_weights = spec.vocabulary * spec.width;
  const FreezeList& freeze = spec.freeze;
  const bool trains_head = !freeze.matrices && !(spec.tied_head ? freeze.embedding : freeze.head);
  const std::int64_t lowest = std::max<std::int64_t>(0, lowest_trained_layer(spec));
  std::int64_t products = head_weights * (trains_head ? 3 : 2), attentions = 0;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const bool trains_weights = !freeze.matrices && !freeze.has_layer(layer);
    for (const AdapterSpec& adapter : adapters_of(spec, layer))
      products += 3 * static_cast<std::int64_t>(adapter.rank * (adapter.inputs + adapter.outputs));
    products += layer_weights * (1 + (layer >= lowest ? 1 : 0) + (trains_weights ? 1 : 0));
    attentions += layer >= lowest ? 3 : 1;
  }
  return 2.0 * static_cast<double>(products) + 2.0 *
                                                   static_cast<double>(attentions * spec.attention_width()) *
                                                   length_of_equal_work(spec, sequence_length);
}

}  // namespace holdfast::model
