// AdapterSpec describes an adapter of LoRA (Hu et al. 2021): a linear layer y = x W^T gets y += s (x A^T) B^T for the
// outputs of one target, with s = alpha / rank. Pure data; tensors, memory and names in other programs follow from it.
//
// W, A and B are split alike by tensor lanes: where a layer is split by its outputs, so is B, and where it is split by its
// inputs, so is A. The other one of the two belongs to no slice: each slice computes its part of the gradient, and the
// parts are added as the tree of the slices (Norm does the same).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/lora_targets.h"

namespace holdfast::model {

// LoraSpec says which linear layers have adapters (adapter_spec.h). Where there are any, they are all that is trained.
struct LoraSpec {
  std::int64_t rank = 0;  // 0 = there are none
  float scale = 1.0F;     // alpha / rank
  std::vector<LoraTarget> targets = {};
  bool is_on() const { return rank > 0; }
  bool is_scaled() const { return scale < 1.0F || scale > 1.0F; }
};

struct AdapterSpec {
  LoraTarget target = LoraTarget::q;
  std::string name;   // "layers.3.attention.q"
  std::string layer;  // the linear layer: "layers.3.attention.qkv"
  // Outputs of the layer that it is for: whole groups of its rows.
  std::uint64_t first_output = 0, outputs = 0;
  std::uint64_t inputs = 0;
  std::vector<std::uint64_t> row_groups = {};  // of these outputs; empty: the layer is split by its inputs
  std::uint64_t rank = 0;

  std::string a() const { return name + ".lora_a.weight"; }  // (rank, inputs)
  std::string b() const { return name + ".lora_b.weight"; }  // (outputs, rank)
  bool is_split_by_outputs() const { return !row_groups.empty(); }
  // Returns the elements of the matrix that belongs to no slice.
  std::uint64_t shared_elements() const { return rank * (is_split_by_outputs() ? inputs : outputs); }
};

// BlockWidths are the widths of a block that its linear layers have.
struct BlockWidths {
  std::uint64_t width = 0, queries = 0, keys = 0, feed_forward = 0;
  bool is_gated = false;  // the feed-forward layer
};
// Returns the adapters of a layer in forward order (adapters_of() of spec.h has the widths from the model).
std::vector<AdapterSpec> adapters_of(const LoraSpec& lora, const BlockWidths& block, std::int64_t layer);
bool is_adapter(const std::string& parameter);  // by its name
std::string text_of(const LoraSpec& lora);      // "adapters of rank 8 (q, v), scale 2", or "no adapters"

}  // namespace holdfast::model
