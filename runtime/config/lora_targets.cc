#include "runtime/config/lora_targets.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

namespace holdfast::config {
namespace {

struct TargetNames {
  LoraTarget target;
  const char* name;
  const char* rotary;  // module of Llama's class and of those like it; null: it has none
  const char* gpt2;    // of GPT-2's
};

constexpr std::array<TargetNames, 8> target_names = {{
    {LoraTarget::q, "q", "self_attn.q_proj", nullptr},
    {LoraTarget::k, "k", "self_attn.k_proj", nullptr},
    {LoraTarget::v, "v", "self_attn.v_proj", nullptr},
    {LoraTarget::qkv, "qkv", nullptr, "attn.c_attn"},
    {LoraTarget::o, "o", "self_attn.o_proj", "attn.c_proj"},
    {LoraTarget::gate, "gate", "mlp.gate_proj", nullptr},
    {LoraTarget::up, "up", "mlp.up_proj", "mlp.c_fc"},
    {LoraTarget::down, "down", "mlp.down_proj", "mlp.c_proj"},
}};

const TargetNames& names_of(LoraTarget target) {
  return target_names[static_cast<std::size_t>(target)];
}

}  // namespace

const char* name_of(LoraTarget target) {
  return names_of(target).name;
}

const char* foreign_name_of(LoraTarget target, const ModelFamily& family) {
  return family.is_rotary ? names_of(target).rotary : names_of(target).gpt2;
}

std::vector<LoraTarget> lora_targets_of(const ModelFamily& family) {
  std::vector<LoraTarget> targets;
  for (const TargetNames& each : target_names) {
    if (foreign_name_of(each.target, family) != nullptr) targets.push_back(each.target);
  }
  return targets;
}

Result<std::vector<LoraTarget>> parse_lora_targets(std::span<const std::string> entries,
                                                   const ModelFamily& family) {
  const std::vector<LoraTarget> known = lora_targets_of(family);
  std::set<LoraTarget> found;
  for (const std::string& entry : entries) {
    const auto is_named = [&](LoraTarget target) {
      const std::string foreign = foreign_name_of(target, family);
      return entry == name_of(target) || entry == foreign || entry == foreign.substr(foreign.find('.') + 1);
    };
    // "c_proj" of GPT-2 is the name of two modules: both, as PEFT has it.
    bool is_known = entry == "all";
    for (const LoraTarget target : known) {
      if (entry != "all" && !is_named(target)) continue;
      found.insert(target);
      is_known = true;
    }
    if (is_known) continue;
    std::vector<const char*> names;
    for (const LoraTarget target : known) names.push_back(name_of(target));
    return fail(ExitCode::config,
                "lora.targets has the entry \"{}\": an entry is \"all\", or a part of a block of model.style "
                "= \"{}\", "
                "which are \"{}\"",
                entry, family.style, fmt::join(names, "\", \""));
  }
  return std::vector<LoraTarget>(found.begin(), found.end());
}

}  // namespace holdfast::config
