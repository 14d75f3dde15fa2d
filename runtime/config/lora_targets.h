// Parses lora.targets, the list of the linear layers that get an adapter (LoRA: Hu et al. 2021, "LoRA: Low-Rank
// Adaptation of Large Language Models"), and knows the names that PEFT has for them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/model_family.h"
#include "runtime/core/result.h"

namespace holdfast::config {

// LoraTarget is a part of a block whose outputs get an adapter, in the order of a forward.
enum class LoraTarget { q, k, v, qkv, o, gate, up, down };

const char* name_of(LoraTarget target);
// Returns the name of the module in the family's class of transformers, within a layer: "self_attn.q_proj".
const char* foreign_name_of(LoraTarget target, const ModelFamily& family);
// Returns the parts that a block of the family has: queries, keys and values are one ("qkv") where transformers has them
// in one module, and only a gated feed-forward layer has a gate.
std::vector<LoraTarget> lora_targets_of(const ModelFamily& family);

// Returns the targets in the order of a forward, each once. "all" is every part; the last words of PEFT's names ("q_proj")
// are taken as well. Errors: ExitCode::config, with the entry that is wrong and those that there are.
Result<std::vector<LoraTarget>> parse_lora_targets(std::span<const std::string> entries,
                                                   const ModelFamily& family);

}  // namespace holdfast::config
