#include "runtime/config/model_family.h"

#include <algorithm>
#include <array>

#include "runtime/core/check.h"

namespace holdfast::config {

std::span<const ModelFamily> model_families() {
  static constexpr std::array families = {
      ModelFamily{.style = "llama", .foreign_type = "llama", .foreign_class = "LlamaForCausalLM"},
      ModelFamily{.style = "gpt2",
                  .norm = NormKind::layer_norm,
                  .activation = ActivationKind::gelu,
                  .biases = Biases::all,
                  .is_rotary = false,
                  .has_tied_head = true,
                  .foreign_type = "gpt2",
                  .foreign_class = "GPT2LMHeadModel",
                  .foreign_positions = 1024},
      ModelFamily{.style = "qwen2",
                  .biases = Biases::qkv,
                  .foreign_type = "qwen2",
                  .foreign_class = "Qwen2ForCausalLM",
                  .foreign_kv_heads = 32,
                  .foreign_positions = 32768,
                  .foreign_window = WindowMembers::switched},
      ModelFamily{.style = "qwen3",
                  .has_head_norms = true,
                  .foreign_type = "qwen3",
                  .foreign_class = "Qwen3ForCausalLM",
                  .foreign_kv_heads = 32,
                  .foreign_head_size = 128,
                  .foreign_positions = 32768,
                  .foreign_window = WindowMembers::switched},
      ModelFamily{.style = "mistral",
                  .foreign_type = "mistral",
                  .foreign_class = "MistralForCausalLM",
                  .foreign_kv_heads = 8,
                  .foreign_positions = 131072,
                  .foreign_window = WindowMembers::window},
  };
  return families;
}

const ModelFamily& family_of(std::string_view style) {
  const auto found = std::ranges::find(model_families(), style, &ModelFamily::style);
  HF_CHECK(found != model_families().end(), "there is no family {}", style);
  return *found;
}

const ModelFamily* find_foreign_family(std::string_view foreign_type) {
  const auto found = std::ranges::find(model_families(), foreign_type, &ModelFamily::foreign_type);
  return found == model_families().end() ? nullptr : &*found;
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const ModelFamily& family : model_families()) names.push_back(family.style);
  return names;
}

}  // namespace holdfast::config
