#include "runtime/inference/inference.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/units.h"
#include "runtime/interop/checkpoint_contents.h"
#include "runtime/os/console.h"
#include "runtime/os/machine_facts.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/kernel_choice.h"
#include "runtime/save/state_view.h"

namespace holdfast::inference {
namespace {

// Returns the model in fp32. Its chunks of the head are those of the device that is used, which need not be
// the run's.
ModelSpec fp32_spec(Config config, const std::string& device) {
  config.device = device;
  config.training.precision = "fp32";
  config.training.head_rows = default_head_rows(config);
  return make_model_spec(config);
}

BatchShapeBT shape_of(const Config& config, const InferenceOptions& options) {
  return {.batch = options.batch,
          .sequence_length =
              options.sequence_length > 0 ? options.sequence_length : config.training.sequence_length};
}

// Opens the device with the kernels of the run, as far as this program has them on this device. Those that the options name
// must be there.
Result<std::unique_ptr<Device>> device_of(Env& env, const Config& of_run, const InferenceOptions& options) {
  Config config;
  config.device = options.device;
  config.kernels = of_run.kernels;
  config.kernels.plan.clear();  // of products in another precision
  config.kernels.shadows.clear();
  std::vector<std::string> needed;
  for (const Override& given : options.kernels) needed.push_back(given.key);
  const bool needs_isa = std::ranges::find(needed, "kernels.isa") != needed.end();
  const std::optional<CpuIsa> isa = cpu_isa_of(config.kernels.isa);
  if (isa.has_value() && *isa > best_cpu_isa() && !needs_isa) config.kernels.isa = "auto";
  HF_TRY(const KernelTarget target, target_of_device(env, config));
  HF_TRY(const KernelRegistry* registry, registry_of_device(env, config));
  for (const std::string& forgotten : forget_missing_kernels(config.kernels, *registry, target, needed))
    print_message(
        "the run has {}, which is not here: the default computes in its place. Give "
        "--kernels.plugins=FILE.so "
        "where it is of a plug-in",
        forgotten);
  HF_TRY_VOID(check_device(env, config, {}));
  return make_device(env, config, {}, {.threads = options.threads});
}

}  // namespace

InferenceModel::InferenceModel(Config config, const InferenceOptions& options, std::unique_ptr<Device> device)
    : config_(std::move(config)),
      spec_(fp32_spec(config_, options.device)),
      shape_(shape_of(config_, options)),
      lengths_(static_cast<std::size_t>(options.cached_sequences), 0),
      buckets_(backward_buckets(spec_), 1),
      device_(std::move(device)) {}

Result<std::unique_ptr<InferenceModel>> InferenceModel::load(Env& env, Checkpoint& checkpoint,
                                                             const InferenceOptions& options) {
  HF_CHECK(options.batch >= 1 && options.sequence_length >= 0);
  HF_TRY(Config config, config_of_checkpoint(env, checkpoint, options.kernels));
  HF_TRY(std::unique_ptr<Device> device, device_of(env, config, options));
  std::unique_ptr<InferenceModel> inference(
      new InferenceModel(std::move(config), options, std::move(device)));
  HF_TRY_VOID(inference->check_length(checkpoint.directory()));
  HF_TRY_VOID(inference->allocate(env));
  HF_TRY_VOID(inference->read_weights(checkpoint, options));
  return inference;
}

Result<void> InferenceModel::check_length(const std::string& checkpoint) const {
  if (spec_.positions == 0 || shape_.sequence_length <= spec_.positions) return {};
  return fail(
      ExitCode::config,
      "a sequence of {} tokens is longer than the {} positions that the model of {} has learned. Give a "
      "sequence length of {} or less",
      shape_.sequence_length, spec_.positions, checkpoint, spec_.positions);
}

// Plans the memory for the present number of sequences, and takes it.
Result<void> InferenceModel::plan_memory(Env& env) {
  plan_ = MemoryPlan();
  parameters_slot_ =
      plan_.reserve("parameters", MemoryClass::weights, buckets_.parameter_elements() * sizeof(float));
  tokens_ = std::make_unique<TokenStaging>(TokenStagingShape{.microbatch = shape_, .with_first_keys = true},
                                           *device_, plan_);
  loss_sum_slot_ =
      plan_.reserve("loss_sum", MemoryClass::workspace, sizeof(double), MemoryKind::host_visible);
  host_access_ = std::make_unique<HostAccess>(*device_, plan_);
  model_ = std::make_unique<Model>(spec_, shape_, Model::Mode::forward_only, plan_, Recompute::none, stage());
  HF_TRY_VOID(check_fits(plan_, available_memory_bytes(env), 1, device_->host_sees_memory()));
  HF_TRY(arena_, allocate_memory(*device_, plan_));
  return {};
}

Result<void> InferenceModel::allocate(Env& env) {
  Result<void> planned = plan_memory(env);
  for (; !planned.ok() && planned.error().code == ExitCode::does_not_fit && lengths_.size() > 1;
       planned = plan_memory(env))
    lengths_.resize(lengths_.size() / 2);
  if (!planned.ok() && planned.error().code == ExitCode::does_not_fit)
    return fail_because(
        planned.error(), ExitCode::does_not_fit,
        "the model does not fit: in fp32, for sequences of {} tokens, it takes {} of memory, and there is "
        "less. Use a "
        "host or a --device that has more, or, for holdfast evaluate, a smaller --sequence-length",
        shape_.sequence_length, format_bytes(plan_.total_bytes()));
  HF_TRY_VOID(std::move(planned));
  parameters_ = arena_.at<float>(parameters_slot_);
  tokens_->bind(arena_);
  loss_sum_ = arena_.at<double>(loss_sum_slot_);
  host_access_->bind(arena_);
  model_->bind(*device_, arena_, buckets_, arena_.bytes(parameters_slot_).data(), nullptr);
  return {};
}

Result<void> InferenceModel::read_weights(Checkpoint& checkpoint, const InferenceOptions& options) {
  std::set<std::string> averaged;
  if (options.averaged) {
    HF_TRY(averaged, averaged_tensors(checkpoint));
  }
  std::vector<OwnedState> pieces;
  for (const Bucket& bucket : buckets_.buckets()) {
    if (bucket.tied_to >= 0) continue;
    for (const BucketTensor& tensor : bucket.tensors) {
      pieces.push_back({.spec = shard_spec_of(tensor, averaged.contains(tensor.name) ? "ema" : "weight"),
                        .data = reinterpret_cast<std::byte*>(parameters_ + tensor.parameter_offset)});
    }
  }
  HF_TRY_VOID(read_state(*host_access_, pieces, checkpoint, options.threads));
  return device_->status();
}

StageShape InferenceModel::stage() const {
  StageShape stage = whole_stage(spec_);
  stage.cached_sequences = static_cast<int>(lengths_.size());
  return stage;
}

std::int64_t InferenceModel::room(int sequence) const {
  return shape_.sequence_length - lengths_[static_cast<std::size_t>(sequence)];
}

int InferenceModel::sequences_at_once() const {
  const std::int64_t rows = std::min(shape_.rows(), model_->head_rows());
  return static_cast<int>(std::min(std::ssize(lengths_), rows));
}

Result<std::span<const float>> InferenceModel::append(int sequence, std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  HF_CHECK(count >= 1 && count <= room(sequence));
  std::int64_t& length = lengths_[static_cast<std::size_t>(sequence)];
  const ContinuedRows rows{.sequence = sequence, .position = length, .rows = count};
  length += count;
  return run(tokens, {&rows, 1}, count - 1);
}

Result<std::span<const float>> InferenceModel::append(std::span<const NextToken> next) {
  HF_CHECK(!next.empty() && std::ssize(next) <= sequences_at_once());
  std::vector<std::int32_t> tokens;
  std::vector<ContinuedRows> rows;
  for (const NextToken& each : next) {
    HF_CHECK(room(each.sequence) >= 1);
    tokens.push_back(each.token);
    rows.push_back({.sequence = each.sequence,
                    .position = lengths_[static_cast<std::size_t>(each.sequence)]++,
                    .rows = 1});
  }
  return run(tokens, rows, 0);
}

Result<std::span<const float>> InferenceModel::run(std::span<const std::int32_t> tokens,
                                                   std::span<const ContinuedRows> continued,
                                                   std::int64_t first_row) {
  TokenBatch batch = tokens_->stage(0, tokens, {}, {});
  batch.first_key = nullptr;
  batch.shape = {.batch = 1, .sequence_length = std::ssize(tokens)};
  batch.continued = continued;
  const auto rows = static_cast<std::size_t>(std::ssize(tokens) - first_row);
  const auto vocabulary = static_cast<std::size_t>(spec_.vocabulary);
  const auto slices = static_cast<std::size_t>(spec_.tensor_lanes);
  const auto columns = static_cast<std::size_t>(spec_.slice().padded_vocabulary);
  const auto* logits = static_cast<const float*>(
      model_->forward_logits(*device_, batch, first_row, static_cast<std::int64_t>(rows)));
  logits_.resize(rows * vocabulary);
  for (std::size_t i = 0; i < slices * rows; ++i) {
    const std::size_t first = i / rows * columns;  // token of the slice
    if (first >= vocabulary) break;
    const std::span<const std::byte> seen = host_access_->to_read(
        std::as_bytes(std::span(logits + i * columns, std::min(columns, vocabulary - first))));
    std::memcpy(logits_.data() + i % rows * vocabulary + first, seen.data(), seen.size());
  }
  HF_TRY_VOID(device_->status());
  return std::span<const float>(logits_);
}

Result<double> InferenceModel::loss_sum(std::span<const std::int32_t> inputs,
                                        std::span<const std::int32_t> targets,
                                        std::span<const std::int32_t> first_key) {
  HF_CHECK(inputs.size() == static_cast<std::size_t>(shape_.rows()) && targets.size() == inputs.size());
  TokenBatch batch = tokens_->stage(0, inputs, targets, first_key);
  if (first_key.empty()) batch.first_key = nullptr;
  HF_TRY_VOID(model_->forward_loss(*device_, batch, loss_sum_));
  device_->synchronize();
  HF_TRY_VOID(device_->status());
  return *loss_sum_;
}

}  // namespace holdfast::inference
