#include "runtime/train/inference.h"

#include <algorithm>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/available_memory.h"

namespace holdfast {
namespace {

// Sequences are padded to a multiple of this, so that a growing text needs few matmul shapes. Padding stands
// behind the text, and attention is causal: it changes nothing.
constexpr std::int64_t length_multiple = 32;

ModelSpec fp32_spec(const Config& config) {
  ModelSpec spec = make_model_spec(config);
  spec.dtype = DType::fp32;
  return spec;
}

BatchShapeBT shape_of(const Config& config, const InferenceOptions& options) {
  return {.batch = options.batch,
          .sequence_length =
              options.sequence_length > 0 ? options.sequence_length : config.training.sequence_length};
}

}  // namespace

Result<Config> config_of_checkpoint(Env& env, const Checkpoint& checkpoint) {
  const std::string name = checkpoint.directory() + " (stored config)";
  Result<LoadedConfig> loaded = load_stored_config(env, checkpoint.manifest().config, name);
  if (!loaded.ok()) return Error{ExitCode::checkpoint, loaded.error().message};
  return std::move(loaded->config);
}

InferenceModel::InferenceModel(Config config, const InferenceOptions& options)
    : config_(std::move(config)),
      spec_(fp32_spec(config_)),
      shape_(shape_of(config_, options)),
      buckets_(backward_buckets(spec_), 1),
      device_(make_cpu_device({.threads = options.threads})) {}

Result<std::unique_ptr<InferenceModel>> InferenceModel::load(Env& env, Checkpoint& checkpoint,
                                                             const InferenceOptions& options) {
  HF_CHECK(options.batch >= 1 && options.sequence_length >= 0);
  HF_TRY(Config config, config_of_checkpoint(env, checkpoint));
  std::unique_ptr<InferenceModel> inference(new InferenceModel(std::move(config), options));
  const ModelSpec& spec = inference->spec_;
  const auto rows = static_cast<std::size_t>(inference->shape_.rows());
  if (spec.positions > 0 && inference->shape_.sequence_length > spec.positions) {
    return fail(
        ExitCode::config,
        "a sequence of {} tokens is longer than the {} positions that the model of {} has learned. Give a "
        "sequence length of {} or less",
        inference->shape_.sequence_length, spec.positions, checkpoint.directory(), spec.positions);
  }
  MemoryPlan& plan = inference->plan_;
  const auto parameters = plan.reserve("parameters", MemoryClass::weights,
                                       inference->buckets_.parameter_elements() * sizeof(float));
  const auto tokens = plan.reserve("tokens", MemoryClass::data, 3 * rows * sizeof(std::int32_t));
  const auto loss_sum = plan.reserve("loss_sum", MemoryClass::workspace, sizeof(double));
  inference->model_ = std::make_unique<Model>(spec, inference->shape_, Model::Mode::forward_only, plan);
  HF_TRY_VOID(check_fits(plan, available_memory_bytes(env), 1));
  HF_TRY(inference->arena_, allocate_memory(*inference->device_, plan));
  inference->parameters_ = inference->arena_.at<float>(parameters);
  inference->inputs_ = inference->arena_.at<std::int32_t>(tokens);
  inference->targets_ = inference->inputs_ + rows;
  inference->first_key_ = inference->targets_ + rows;
  inference->loss_sum_ = inference->arena_.at<double>(loss_sum);
  inference->model_->bind(*inference->device_, inference->arena_, inference->buckets_,
                          inference->arena_.bytes(parameters).data(), nullptr);
  HF_TRY_VOID(inference->read_weights(checkpoint));
  return inference;
}

Result<void> InferenceModel::read_weights(Checkpoint& checkpoint) {
  std::vector<Checkpoint::Wanted> wanted;
  for (const Bucket& bucket : buckets_.buckets()) {
    if (bucket.shadow_of >= 0) continue;
    for (const BucketTensor& tensor : bucket.tensors) {
      ShardSpec spec{
          .tensor = tensor.name, .kind = "weight", .dtype = DType::fp32, .global_shape = tensor.shape};
      spec.block_count = spec.tensor_blocks();
      const std::span<float> target(parameters_ + tensor.parameter_offset, tensor.elements());
      wanted.push_back({.spec = std::move(spec), .target = std::as_writable_bytes(target)});
    }
  }
  return checkpoint.read(wanted);
}

std::span<const float> InferenceModel::next_logits(std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  HF_CHECK(count >= 1 && count <= shape_.sequence_length);
  const std::int64_t padded = (count + length_multiple - 1) / length_multiple * length_multiple;
  const std::int64_t length = std::min(padded, shape_.sequence_length);
  std::fill(std::copy(tokens.begin(), tokens.end(), inputs_), inputs_ + length, 0);
  const TokenBatch batch{.inputs = inputs_, .shape = {.batch = 1, .sequence_length = length}};
  const void* logits = model_->forward_logits(*device_, batch, count - 1);
  device_->synchronize();
  return {static_cast<const float*>(logits), static_cast<std::size_t>(spec_.vocabulary)};
}

double InferenceModel::loss_sum(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets,
                                std::span<const std::int32_t> first_key) {
  HF_CHECK(inputs.size() == static_cast<std::size_t>(shape_.rows()) && targets.size() == inputs.size());
  std::ranges::copy(inputs, inputs_);
  std::ranges::copy(targets, targets_);
  std::ranges::copy(first_key, first_key_);
  model_->forward_loss(*device_,
                       {.inputs = inputs_,
                        .targets = targets_,
                        .first_key = first_key.empty() ? nullptr : first_key_,
                        .shape = shape_},
                       loss_sum_);
  device_->synchronize();
  return *loss_sum_;
}

}  // namespace holdfast
