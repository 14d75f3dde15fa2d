#include "tools/bench_native/op_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "kernels/composed.h"
#include "kernels/visit_op.h"
#include "runtime/config/loader.h"
#include "runtime/config/presets.h"
#include "runtime/elastic/planned_rank.h"
#include "runtime/measure/call_key.h"
#include "runtime/model/block.h"
#include "runtime/run/run_layout.h"
#include "runtime/train/worker.h"

namespace holdfast::bench {
namespace {

// Makes the config of a run on one rank from the shapes of a model, one microbatch in one lane.
Result<Config> config_of(const ModelConfig& model, DType dtype, BatchShapeBT batch,
                         const std::string& device) {
  Config config;
  config.model = model;
  config.device = device;
  config.training.sequence_length = batch.sequence_length;
  config.training.microbatch_size = batch.batch;
  config.training.precision = dtype == DType::bf16 ? "bf16" : "fp32";
  config.parallel.lanes = 1;
  HF_TRY_VOID(resolve_config(config, 0));
  return config;
}

// A model and a batch that samples are taken from.
struct SampleSource {
  enum class Ops { all, limited_by_memory, attention };
  std::string name;
  ModelConfig model;
  BatchShapeBT batch;
  Ops ops = Ops::all;
  std::int64_t document_unit =
      0;  // attention stays in documents of 1 to 6 times so many tokens; 0 = one each

  bool wants(OpId id) const {
    if (ops == Ops::all) return true;
    if (ops == Ops::attention) return id == AttentionForward::id || id == AttentionBackward::id;
    const OpClass op_class = class_of(id);
    return op_class == OpClass::norm || op_class == OpClass::activation || op_class == OpClass::residual ||
           op_class == OpClass::bias_gradient;
  }
};

SampleSource preset_source(std::string_view preset, BatchShapeBT batch) {
  return {.name = fmt::format("{} {}x{}", preset, batch.batch, batch.sequence_length),
          .model = find_preset(preset)->model,
          .batch = batch};
}

std::vector<SampleSource> cpu_sources() {
  std::vector<SampleSource> sources;
  for (const std::string_view preset : {"gpt2-124m", "llama-15m", "llama-110m"}) {
    sources.push_back(preset_source(preset, {.batch = 4, .sequence_length = 64}));
    sources.push_back(preset_source(preset, {.batch = 1, .sequence_length = 1024}));
    sources.push_back(preset_source(preset, {.batch = 16, .sequence_length = 1024}));
    sources.back().ops = SampleSource::Ops::limited_by_memory;
  }
  return sources;
}

// `tokens` tokens in sequences of each length, by the width and head sizes of a model that is all attention.
struct AttentionTable {
  std::int64_t tokens = 0, width = 0, shortest = 0, longest = 0;
  std::int64_t document_unit = 0;
};

void add_attention_table(std::vector<SampleSource>& sources, const AttentionTable& table) {
  for (const std::int64_t head_size : {64, 128}) {
    for (std::int64_t length = table.shortest; length <= table.longest; length *= 2) {
      ModelConfig model{.preset = {},
                        .layers = 1,
                        .heads = table.width / head_size,
                        .width = table.width,
                        .vocabulary = 64};
      const auto add = [&](const char* name, std::int64_t groups, std::int64_t document_unit) {
        model.kv_heads = std::max<std::int64_t>(1, model.heads / groups);
        sources.push_back({.name = fmt::format("{} {} tokens", name, table.tokens),
                           .model = model,
                           .batch = {.batch = table.tokens / length, .sequence_length = length},
                           .ops = SampleSource::Ops::attention,
                           .document_unit = document_unit});
      };
      constexpr std::int64_t grouped = 4;
      add("plain", 1, 0);
      add("grouped", grouped, 0);
      add("documents,", 1, table.document_unit);
    }
  }
}

std::vector<SampleSource> gpu_sources() {
  std::vector<SampleSource> sources = {preset_source("gpt2-124m", {.batch = 64, .sequence_length = 1024}),
                                       preset_source("gpt2-1558m", {.batch = 8, .sequence_length = 1024}),
                                       preset_source("llama-1b", {.batch = 8, .sequence_length = 1024}),
                                       preset_source("llama-8b", {.batch = 1, .sequence_length = 8192})};
  add_attention_table(
      sources, {.tokens = 16384, .width = 2048, .shortest = 1024, .longest = 16384, .document_unit = 256});
  return sources;
}

std::vector<SampleSource> toy_sources() {
  std::vector<SampleSource> sources;
  for (const char* style : {"gpt2", "llama"}) {
    const bool is_llama = std::string_view(style) == "llama";
    sources.push_back({.name = fmt::format("toy-{} 2x16", style),
                       .model = {.preset = {},
                                 .style = style,
                                 .layers = 1,
                                 .heads = 4,
                                 .kv_heads = is_llama ? 2 : 4,
                                 .width = 64,
                                 .vocabulary = 256},
                       .batch = {.batch = 2, .sequence_length = 16}});
  }
  add_attention_table(sources,
                      {.tokens = 32, .width = 256, .shortest = 32, .longest = 32, .document_unit = 2});
  return sources;
}

std::vector<SampleSource> sources_of(SampleSizes sizes) {
  if (sizes == SampleSizes::cpu) return cpu_sources();
  return sizes == SampleSizes::gpu ? gpu_sources() : toy_sources();
}

// Fills sequences with documents, of these multiples of `unit`, one behind the other; the last is cut. Returns
// the share of the pairs of query and key that causality leaves.
double put_documents(std::vector<std::int32_t>& first_keys, std::int64_t unit, BatchShapeBT batch) {
  constexpr std::array<std::int64_t, 5> multiples = {2, 6, 1, 4, 3};
  std::vector<std::int32_t> sequence;
  std::int64_t begin = 0, pairs = 0;
  for (std::size_t document = 0; begin < batch.sequence_length; ++document) {
    const std::int64_t length =
        std::min(multiples[document % multiples.size()] * unit, batch.sequence_length - begin);
    sequence.insert(sequence.end(), static_cast<std::size_t>(length), static_cast<std::int32_t>(begin));
    pairs += length * (length + 1) / 2;
    begin += length;
  }
  for (std::int64_t i = 0; i < batch.batch; ++i)
    first_keys.insert(first_keys.end(), sequence.begin(), sequence.end());
  return static_cast<double>(pairs) /
         static_cast<double>(batch.sequence_length * (batch.sequence_length + 1) / 2);
}

// "feed-forward, weight gradient".
std::string use_text(const OpScope& scope, const OpCall& call) {
  constexpr std::array<const char*, 5> parts = {"step", "embedding", "attention", "feed-forward", "head"};
  const char* const part = parts[static_cast<std::size_t>(scope.part)];
  if (call.id() != Matmul::id) return part;
  const Matmul& op = *static_cast<const Matmul*>(call.arguments());
  return fmt::format("{}, {}", part,
                     op.transpose_a   ? "weight gradient"
                     : op.transpose_b ? "forward"
                                      : "input gradient");
}

// Returns the largest number of slices, of 4 and 2, that the model can be cut into; 1: none.
int slices_of(const Config& config) {
  for (const int slices : {4, 2}) {
    if (config.model.heads % slices == 0 && config.model.kv_heads % slices == 0) return slices;
  }
  return 1;
}

// Collects the samples of sources, each call once in a source.
class SampleCollector {
 public:
  SampleCollector(Env& env, DType dtype, SampleSizes sizes)
      : env_(env), dtype_(dtype), device_(sizes == SampleSizes::cpu ? "cpu" : "cuda") {}

  Result<void> add(const SampleSource& source) {
    seen_.clear();
    HF_TRY(Config config, config_of(source.model, dtype_, source.batch, device_));
    config.data.document_mask = source.document_unit > 0;
    std::set<OpId> called;
    HF_TRY_VOID(add_step(source, config, called));
    if (source.ops == SampleSource::Ops::all) {
      const ModelSpec spec = make_model_spec(config);
      add_parameter_ops(source, spec);
      const std::int64_t count = source.batch.batch * source.batch.sequence_length * spec.width;
      add(source,
          {.use = "embedding, of several ranks", .shape = OpCall(Add{.count = count, .dtype = spec.dtype})});
    }
    config.parallel.tensor_lanes = slices_of(config);
    if (source.ops == SampleSource::Ops::attention || config.parallel.tensor_lanes == 1) return {};
    HF_TRY_VOID(add_step(source, config, called));
    for (std::size_t index = 0; index < op_count; ++index) {
      if (is_composed(static_cast<OpId>(index))) config.kernels.implementations[index] = "parts";
    }
    return add_step(source, config, called);
  }
  std::vector<OpSample> take() { return std::move(samples_); }

 private:
  // Adds what a step launches, except for ops that were called before, and those that go through parameters.
  Result<void> add_step(const SampleSource& source, const Config& config, std::set<OpId>& called) {
    HF_TRY(const std::unique_ptr<PlannedWorker> planned,
           PlannedWorker::make(env_, config, mesh_of(config, 1), 0,
                               {.device = {.host_sees_memory = device_ == "cpu"}}));
    const std::set<OpId> before = called;
    OperandContents contents{.tokens_below = planned->worker().workload().spec.vocabulary};
    double flops_share = 1.0;
    if (source.document_unit > 0)
      flops_share = put_documents(contents.first_keys, source.document_unit, source.batch);
    return planned->run_step([&](OpId id, const void* arguments) {
      if (once_per_step(id) || before.contains(id)) return;
      called.insert(id);
      const OpCall call = visit_op(id, arguments, [](const auto& op) { return OpCall(op); });
      OpSample sample{.use = use_text(planned->device().scope(), call), .shape = call, .contents = contents};
      sample.flops_share = flops_share;
      if (source.wants(id)) add(source, std::move(sample));
    });
  }

  void add_parameter_ops(const SampleSource& source, const ModelSpec& spec) {
    const std::pair<const char*, std::int64_t> tensors[] = {
        {"a norm's weights", spec.width},
        {"attention output", spec.width * spec.width},
        {"up", spec.up_width() * spec.width},
        {"embedding", spec.padded_vocabulary * spec.width}};
    for (const auto& [use, count] : tensors) {
      const auto add = [&, use = use](const auto& op, std::shared_ptr<const void> lists = {}) {
        this->add(source, {.use = use, .shape = OpCall(op), .lists = std::move(lists)});
      };
      add_updates(add, spec.dtype, count);
      add(SquareSum{.count = count});
      add(SquareSum{.count = count, .digests = digests});
      add(Accumulate{.count = count});
      add(Accumulate{.count = count, .square_sums = sums, .digests = digests});
      add(Cast{.count = count});
      add(FillZero{.bytes = count * static_cast<std::int64_t>(sizeof(float))});
      add(Copy{.bytes = count * static_cast<std::int64_t>(sizeof(float))});
      add(TensorDigest{.dtype = spec.dtype, .count = count});
    }
    // This is the call that holdfast sample makes for the token after a full context.
    this->add(source, {.use = "attention, of one token more",
                       .shape = OpCall(AttentionForward{.cache = digests,
                                                        .batch = 1,
                                                        .sequence_length = 1,
                                                        .heads = spec.heads,
                                                        .kv_heads = spec.kv_heads,
                                                        .head_size = spec.head_size,
                                                        .first_position = source.batch.sequence_length - 1,
                                                        .dtype = spec.dtype})});
    const std::int64_t tokens = source.batch.batch * source.batch.sequence_length;
    this->add(source, {.use = "queries, before a head norm",
                       .shape = OpCall(CopyRows{.rows = tokens,
                                                .columns = spec.attention_width(),
                                                .source_stride = spec.qkv_width(),
                                                .target_stride = spec.attention_width(),
                                                .dtype = spec.dtype})});
  }

  // Adds the ops over the table of one tensor: updates of each rule, alone and with the digests that a run compares, and
  // the digests themselves.
  static void add_updates(auto&& add, DType dtype, std::int64_t count) {
    add_update(add, AdamW{.epsilon = 1e-8F}, dtype, count);
    add_update(add, Lion{}, dtype, count);
    const auto table = table_of_one<AdamW>(dtype, count);
    add(OptimizerDigest{.tensors = table.get(), .tensor_count = 1, .block_count = blocks_of(count)}, table);
  }
  template <typename Update>
  static std::shared_ptr<const OptimizerTensor> table_of_one(DType dtype, std::int64_t count) {
    static float moments[2];
    static BFloat16 copy;
    return std::make_shared<const OptimizerTensor>(
        OptimizerTensor{.moment1 = moments,
                        .moment2 = Update::moment_count > 1 ? moments + 1 : nullptr,
                        .copy = dtype == DType::bf16 ? &copy : nullptr,
                        .count = count,
                        .weight_decay = 0.1F});
  }
  template <typename Update>
  static void add_update(auto&& add, Update update, DType dtype, std::int64_t count) {
    static StateDamage damage[2];
    const auto table = table_of_one<Update>(dtype, count);
    update.tensors = table.get();
    update.tensor_count = 1;
    update.block_count = blocks_of(count);
    update.learning_rate = 1e-4F;
    update.beta1 = 0.9F;
    update.beta2 = 0.95F;
    add(update, table);
    update.block_digests = digests;
    update.checks_digests = true;
    update.damage = damage;
    update.gradient_digests = digests + 1;
    update.gradient_damage = damage + 1;
    add(update, table);
  }

  // A step launches a shape in several ways, which are calls of their own: the norms of blocks work in place over the
  // gradient that flows around them, and the one before the head does not.
  void add(const SampleSource& source, OpSample sample) {
    if (!seen_.insert(measure::call_key(sample.shape.id(), sample.shape.arguments())).second) return;
    sample.use = fmt::format("{}, {}", source.name, sample.use);
    samples_.push_back(std::move(sample));
  }

  static inline std::uint64_t digests[2];  // addresses that stand for memory
  static inline double sums[1];

  Env& env_;
  DType dtype_;
  std::string device_;
  std::set<measure::CallKey> seen_;  // of this source
  std::vector<OpSample> samples_;
};

}  // namespace

void OpCall::launch(Device& device) const {
  visit_op(id_, arguments(), [&](const auto& op) { device.launch(op); });
}

OpCall OpSample::make(OpMemory& memory) const {
  return visit_op(shape.id(), shape.arguments(),
                  [&](const auto& op) { return OpCall(memory.with_operands(op, contents)); });
}

Result<ModelSpec> preset_spec(std::string_view preset, DType dtype, std::int64_t sequence_length,
                              const std::string& device) {
  std::vector<std::string_view> names;
  for (const ModelPreset& each : model_presets()) names.push_back(each.name);
  const ModelPreset* found = find_preset(preset);
  if (found == nullptr) {
    return fail(ExitCode::config, "there is no preset {}; there are {}", preset, fmt::join(names, ", "));
  }
  HF_TRY(const Config config,
         config_of(found->model, dtype, {.batch = 1, .sequence_length = sequence_length}, device));
  return make_model_spec(config);
}

std::string_view name_of(SampleSizes sizes) {
  switch (sizes) {
    case SampleSizes::cpu:
      return "cpu";
    case SampleSizes::gpu:
      return "gpu";
    case SampleSizes::toy:
      return "toy";
  }
  return "unknown";
}

Result<std::vector<OpSample>> op_samples(Env& env, DType dtype, SampleSizes sizes) {
  SampleCollector collector(env, dtype, sizes);
  for (const SampleSource& source : sources_of(sizes)) HF_TRY_VOID(collector.add(source));
  return collector.take();
}

}  // namespace holdfast::bench
