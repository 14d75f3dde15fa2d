#include <algorithm>
#include <array>

#include "tests/fuzz/fuzz.h"

namespace holdfast::fuzz {

extern const Target board_target, config_target, events_target, flight_target, guard_message_target,
    hugging_face_target, llmc_model_target, llmc_tokens_target, llmq_tokens_target, manifest_target,
    megatron_tokens_target, numbers_history_target, operations_target, replica_target, safetensors_target,
    sealed_session_target, shard_target, shard_copy_target, snapshot_slot_target, text_tokens_target,
    tokenizer_target;

std::span<const Target* const> all_targets() {
  static constexpr std::array<const Target*, 21> targets = {
      &board_target,         &config_target,       &events_target,          &flight_target,
      &guard_message_target, &hugging_face_target, &llmc_model_target,      &llmc_tokens_target,
      &llmq_tokens_target,   &manifest_target,     &megatron_tokens_target, &numbers_history_target,
      &operations_target,    &replica_target,      &safetensors_target,     &sealed_session_target,
      &shard_target,         &shard_copy_target,   &snapshot_slot_target,   &text_tokens_target,
      &tokenizer_target};
  return targets;
}

const Target* find_target(std::string_view name) {
  const auto found = std::ranges::find(all_targets(), name, &Target::name);
  return found == all_targets().end() ? nullptr : *found;
}

}  // namespace holdfast::fuzz
