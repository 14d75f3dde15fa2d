// ModelSpec: the shapes of one decoder-only transformer of a family (runtime/config/model_family.h), and the list of its
// tensors. Pure data; everything that depends on the model (memory, buckets, names on disk, FLOPs) follows
// from it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/call_filter.h"
#include "kernels/composed.h"
#include "parallel/data/buckets.h"
#include "parallel/group/mesh.h"
#include "runtime/config/config.h"
#include "runtime/config/freeze_list.h"
#include "runtime/config/model_family.h"
#include "runtime/core/result.h"
#include "runtime/core/tensor.h"
#include "runtime/model/adapter_spec.h"

namespace holdfast::model {

// Activations that backward computes again instead of finding them in memory (Korthikanti et al. 2022). The
// choice changes memory and time, never a bit: an op gives the same bits whenever it runs.
enum class Recompute {
  none,
  selective,  // what is cheap to compute and large: outputs of norms and activation functions
  full,       // everything but the input of each block
};

// RotaryScaling says how rotary frequencies are changed for longer contexts.
struct RotaryScaling {
  enum class Kind { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1.0;  // what frequencies are divided by: all with linear, those of long waves with llama3
  // llama3: waves of more than original_positions / low_factor tokens are divided in full, those of fewer than
  // original_positions / high_factor not at all, and those between them in part.
  double low_factor = 1.0, high_factor = 4.0, original_positions = 0.0;
};

struct ModelSpec {
  std::int64_t layers = 0, heads = 0, kv_heads = 0, head_size = 0, width = 0, feed_forward = 0;
  std::int64_t vocabulary = 0;         // token ids are below this
  std::int64_t padded_vocabulary = 0;  // rows of the embedding and head (padded_vocabulary() of the config)
  std::int64_t positions = 0;          // rows of the learned position table; 0 = rotary
  NormKind norm = NormKind::rms_norm;
  ActivationKind activation = ActivationKind::swiglu;
  Biases biases = Biases::none;
  bool has_head_norms = false;  // RMSNorm of each query and key head before it is rotated
  bool tied_head = false;
  double rope_theta = 10000.0;
  RotaryScaling rope_scaling = {};
  std::int64_t attention_window = 0, attention_sinks = 0;  // as AttentionForward has them
  float norm_epsilon = 1e-5F;
  DType dtype = DType::fp32;   // dtype of the working weights and activations
  std::int64_t head_rows = 0;  // rows of a chunk of the head; 0 = head_chunk_rows() decides as for a CPU
  // Number of slices into which every split tensor is cut (DESIGN: tensor lanes). The number decides the
  // order of sums, so it belongs to the run and not to the ranks.
  int tensor_lanes = 1;
  FreezeList freeze =
      {};  // tensors that training leaves as they are; all but the adapters where there are any
  LoraSpec lora = {};
  // ComposedCalls are calls of a composed op (kernels/composed.h) for which the config names an implementation: there the
  // model launches the op, and its parts elsewhere.
  struct ComposedCalls {
    OpId op = OpId::count;
    CallFilter filter;
  };
  std::vector<ComposedCalls> composed = {};

  // Returns whether a call of a composed op is one of these. Its arrays are not asked for.
  template <ComposedOp Op>
  bool has_composed(const Op& op, const CallPlace& place) const {
    return std::ranges::any_of(composed, [&](const ComposedCalls& each) {
      return each.op == Op::id && each.filter.has(place, &op);
    });
  }

  std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  std::int64_t attention_width() const { return heads * head_size; }
  std::int64_t kv_width() const { return kv_heads * head_size; }
  std::int64_t up_width() const {
    return activation == ActivationKind::swiglu ? 2 * feed_forward : feed_forward;
  }
  // Returns the spec of one slice: its heads, its part of the feed-forward width, its rows of the vocabulary
  // (`vocabulary` is the padded one's).
  ModelSpec slice() const;
};

// Returns whether a model launches a composed op where this implementation of it is named. With Recompute::selective a
// backward computes norms alone, so that an op with a norm in it has to have the bits of its parts, which of a plug-in
// nobody knows.
bool may_compose(OpId op, std::string_view name, Recompute recompute);

// A part of the model: neighbouring layers, perhaps with one of its ends, perhaps an end alone. A stage of a
// pipeline has one part or, interleaved, several (parallel/pipeline/stage_split.h).
struct ModelPart {
  std::int64_t first_layer = 0, end_layer = 0;
  bool has_embedding = false;  // turns tokens into the first layer's input
  bool has_head = false;       // final norm, head and cross-entropy
  std::int64_t layers() const { return end_layer - first_layer; }
};
inline ModelPart whole_model(const ModelSpec& spec) {
  return {.first_layer = 0, .end_layer = spec.layers, .has_embedding = true, .has_head = true};
}

// Returns the angle by which pair `pair` of a head turns from one position to the next: theta^(-2 pair / head_size),
// scaled. The scaling of Llama 3 is that of Meta's llama-models (use_scaled_rope), as transformers has it.
double rotary_frequency(const ModelSpec& spec, std::int64_t pair);

// Makes the spec from a resolved config (resolve_config has filled in every shape).
ModelSpec make_model_spec(const Config& config);
DType precision_of(const Config& config);  // of parameters and activations
Recompute recompute_of(const Config& config);
const char* name_of(Recompute recompute);  // name in the config

// Dimension in which tensor lanes cut a tensor. Rows may be groups one after the other (queries, keys and
// values; gate and up), of which each slice has its part.
enum class Cut { none, rows, columns };

// Shape and starting values of a tensor: normal with this deviation, or uniform in [-bound, bound), or the constant when
// both are 0.
struct ParameterSpec {
  std::string name;
  std::vector<std::uint64_t> shape;
  float deviation = 0.0F;
  float bound = 0.0F;
  float constant = 0.0F;
  std::uint64_t padding_elements = 0;  // trailing elements that belong to vocabulary padding: always zero
  Cut cut = Cut::none;
  std::vector<std::uint64_t> row_groups = {};  // Cut::rows: rows of each group; empty = one group
  bool is_frozen = false;
  std::uint64_t elements() const;
  std::vector<std::uint64_t> slice_shape(int slices) const;
};

// A range of neighbouring elements of a tensor that are neighbours in its slice, too.
struct SliceRun {
  std::uint64_t tensor_offset = 0;  // elements
  std::uint64_t slice_offset = 0;
  std::uint64_t count = 0;
};
// Returns elements [first, first + count) of a slice, as runs in their order.
std::vector<SliceRun> runs_of_slice(const ParameterSpec& parameter, int slice, int slices,
                                    std::uint64_t first, std::uint64_t count);

// Returns the adapters of a layer in forward order, those of a linear layer one after the other; none without LoRA.
std::vector<AdapterSpec> adapters_of(const ModelSpec& spec, std::int64_t layer);

// Returns all tensors in forward order. A layer's tensors are named "layers.<i>.<part>"; see spec.cc for the
// whole list.
std::vector<ParameterSpec> parameter_specs(const ModelSpec& spec);
std::uint64_t parameter_count(const ModelSpec& spec);  // without vocabulary padding, tied weights once
std::uint64_t trained_parameter_count(const ModelSpec& spec);  // those of them that are not frozen
// Checks that each pattern of optimizer.weight_decay_groups matches a tensor of the model; ExitCode::config where one
// does not, with the names that there are. The config is resolved.
Result<void> check_decay_groups(const Config& config);
// Returns the bytes of a whole state: all weights in fp32, and what is kept of the trained ones beside them.
std::uint64_t state_bytes(const ModelSpec& spec, const OptimizerConfig& optimizer);
// Returns the lowest layer that a backward has to run through: -1 where the embedding is trained, the number
// of layers where only the head is.
std::int64_t lowest_trained_layer(const ModelSpec& spec);

// Returns the buckets in the order in which backward finishes them: head, then for each layer from the last
// its feed-forward half and its attention half, then the embedding. A tied head is a tied bucket of the
// embedding's bucket. For split tensors the buckets have the slices of `share`, one after the other. Buckets
// of frozen tensors come last, in the same order; a frozen tied head has none.
std::vector<Bucket> backward_buckets(const ModelSpec& spec, const TensorShare& share);
std::vector<Bucket> backward_buckets(const ModelSpec& spec);  // with all slices
// Returns the buckets of one pipeline stage. `parts` are the stage's, in the order of layers; the buckets of
// the last one come first. Where the ends of a tied weight are on two stages, its state is the embedding's:
// the head's stage has it as an exported bucket, and the embedding's gets an imported one that no backward of
// its own fills, after those that it fills (buckets.h).
std::vector<Bucket> backward_buckets(const ModelSpec& spec, std::span<const ModelPart> parts,
                                     const TensorShare& share);

// Returns FLOP per token of forward and backward: 6 per matmul weight (head in, embedding table out) plus
// causal attention once (6 * layers * attention_width * T, less what a window hides). Weights of adapters count as others
// do; what is computed twice for them does not count. A third of the former is the forward, one the
// gradients of inputs (none below the lowest trained layer), one those of weights (none of frozen ones); two
// thirds of the latter are the gradients of attention's inputs.
double flops_per_token(const ModelSpec& spec, std::int64_t sequence_length);

}  // namespace holdfast::model
