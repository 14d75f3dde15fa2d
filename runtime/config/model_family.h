// Model families: what the blocks of a model are made of, and the name that other programs have for it. Pure data. A
// family whose blocks have no part that is new here is a row of the table in model_family.cc; where its tensors have
// other names in Hugging Face files, also a name map in runtime/interop/foreign_tensors.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace holdfast::config {

enum class NormKind { layer_norm, rms_norm };
enum class ActivationKind { gelu, swiglu };
enum class Biases {
  none,
  qkv,  // of queries, keys and values only
  all   // of every linear layer but the head
};

// WindowMembers says which members of a config.json are about a sliding window.
enum class WindowMembers {
  none,
  window,   // sliding_window, of every layer
  switched  // sliding_window of the layers from max_window_layers on, where use_sliding_window is true
};

struct ModelFamily {
  std::string_view style;  // value of model.style
  NormKind norm = NormKind::rms_norm;
  ActivationKind activation = ActivationKind::swiglu;
  Biases biases = Biases::none;
  bool is_rotary = true;        // else it has a learned table of positions
  bool has_head_norms = false;  // RMSNorm of each query and each key head, before they are rotated
  bool has_tied_head = false;   // where model.head is "auto"
  // In config.json of transformers: model_type, the class, and what is meant where a member is missing.
  std::string_view foreign_type, foreign_class;
  std::int64_t foreign_kv_heads = 0;   // 0 = as many as heads
  std::int64_t foreign_head_size = 0;  // 0 = hidden_size / num_attention_heads
  std::int64_t foreign_positions = 2048;
  WindowMembers foreign_window = WindowMembers::none;
};

std::span<const ModelFamily> model_families();
// Returns the family of a value of model.style, which is one of the table's.
const ModelFamily& family_of(std::string_view style);
const ModelFamily* find_foreign_family(std::string_view foreign_type);  // nullptr when unknown
std::vector<std::string_view> family_names();

}  // namespace holdfast::config
