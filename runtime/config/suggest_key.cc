#include "runtime/config/suggest_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "runtime/config/option.h"
#include "runtime/config/option_value.h"
#include "runtime/core/text.h"

namespace holdfast::config {
namespace {

// Names that PyTorch, Hugging Face, Megatron-LM, torchtitan and nanoGPT have for our keys.
constexpr auto kForeignNames = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"batch_size", "training.microbatch_size"},
     {"micro_batch_size", "training.microbatch_size"},
     {"per_device_train_batch_size", "training.microbatch_size"},
     {"gradient_accumulation_steps", "training.microbatches_per_lane"},
     {"accumulate_grad_batches", "training.microbatches_per_lane"},
     {"block_size", "training.sequence_length"},
     {"context_length", "training.sequence_length"},
     {"max_seq_len", "training.sequence_length"},
     {"max_position_embeddings", "training.sequence_length"},
     {"seq_len", "training.sequence_length"},
     {"seq_length", "training.sequence_length"},
     {"max_iters", "training.steps"},
     {"max_steps", "training.steps"},
     {"train_iters", "training.steps"},
     {"dtype", "training.precision"},
     {"activation_checkpointing", "training.recompute"},
     {"gradient_checkpointing", "training.recompute"},
     {"recompute_granularity", "training.recompute"},
     {"lr", "optimizer.learning_rate"},
     {"max_lr", "optimizer.learning_rate"},
     {"lr_scheduler_type", "optimizer.schedule"},
     {"lr_decay_style", "optimizer.schedule"},
     {"lr_warmup_iters", "optimizer.warmup_steps"},
     {"warmup_iters", "optimizer.warmup_steps"},
     {"adam_beta1", "optimizer.beta1"},
     {"adam_beta2", "optimizer.beta2"},
     {"adam_epsilon", "optimizer.epsilon"},
     {"clip_grad", "optimizer.gradient_clip"},
     {"grad_clip", "optimizer.gradient_clip"},
     {"max_grad_norm", "optimizer.gradient_clip"},
     {"max_norm", "optimizer.gradient_clip"},
     {"n_layer", "model.layers"},
     {"n_layers", "model.layers"},
     {"num_layers", "model.layers"},
     {"num_hidden_layers", "model.layers"},
     {"n_head", "model.heads"},
     {"n_heads", "model.heads"},
     {"num_heads", "model.heads"},
     {"num_attention_heads", "model.heads"},
     {"n_kv_heads", "model.kv_heads"},
     {"num_key_value_heads", "model.kv_heads"},
     {"num_query_groups", "model.kv_heads"},
     {"d_model", "model.width"},
     {"dim", "model.width"},
     {"hidden_size", "model.width"},
     {"n_embd", "model.width"},
     {"ffn_hidden_size", "model.feed_forward"},
     {"intermediate_size", "model.feed_forward"},
     {"vocab_size", "model.vocabulary"},
     {"rms_norm_eps", "model.norm_epsilon"},
     {"head_dim", "model.head_size"},
     {"kv_channels", "model.head_size"},
     {"rope_type", "model.rope_scaling"},
     {"sliding_window", "model.attention_window"},
     {"low_freq_factor", "model.rope_low_frequency_factor"},
     {"high_freq_factor", "model.rope_high_frequency_factor"},
     {"original_max_position_embeddings", "model.rope_original_positions"},
     {"rope_base", "model.rope_theta"},
     {"rotary_base", "model.rope_theta"},
     {"tie_word_embeddings", "model.head"},
     {"dp", "parallel.data"},
     {"data_parallel_size", "parallel.data"},
     {"tp", "parallel.tensor"},
     {"tensor_model_parallel_size", "parallel.tensor"},
     {"tensor_parallel_degree", "parallel.tensor"},
     {"pp", "parallel.pipeline"},
     {"pipeline_model_parallel_size", "parallel.pipeline"},
     {"pipeline_parallel_degree", "parallel.pipeline"},
     {"save_every", "checkpoint.every_steps"},
     {"save_interval", "checkpoint.every_steps"},
     {"save_steps", "checkpoint.every_steps"},
     {"save_total_limit", "checkpoint.keep"},
     {"eval_every", "evaluation.every_steps"},
     {"eval_interval", "evaluation.every_steps"},
     {"eval_steps", "evaluation.every_steps"},
     {"eval_iters", "evaluation.batches"},
     {"log_interval", "log.every_steps"},
     {"logging_steps", "log.every_steps"},
     {"out_dir", "run.directory"},
     {"output_dir", "run.directory"},
     {"random_seed", "run.seed"},
     {"resume_from_checkpoint", "run.resume"},
     {"max_time", "run.stop_after"},
     {"train_data", "data.sources"},
     {"data_path", "data.sources"},
     {"dataset", "data.sources"},
     {"num_threads", "threads"}});

}  // namespace

std::string suggest_key(std::string_view key) {
  const std::string_view section = section_of(key);
  const std::string_view name = section.empty() ? key : key.substr(section.size() + 1);
  std::vector<std::string_view> in_section, all;
  std::string same_name;
  for (const Option& option : option_registry()) {
    const std::string_view other_section = section_of(option.key);
    const std::string_view other_name =
        other_section.empty() ? option.key : option.key.substr(other_section.size() + 1);
    all.push_back(option.key);
    if (other_section == section) in_section.push_back(other_name);
    if (other_name == name && same_name.empty()) same_name = option.key;
  }
  const std::string near = closest(name, in_section);
  if (!near.empty()) return section.empty() ? near : fmt::format("{}.{}", section, near);
  const auto foreign =
      std::ranges::find(kForeignNames, name, &std::pair<std::string_view, std::string_view>::first);
  if (foreign != kForeignNames.end()) return std::string(foreign->second);
  if (!same_name.empty()) return same_name;
  return !section.empty() && is_section(section) ? std::string() : closest(key, all);
}

}  // namespace holdfast::config
