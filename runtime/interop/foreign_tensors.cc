#include "runtime/interop/foreign_tensors.h"

#include <fmt/core.h>

#include <map>

namespace holdfast::interop {
namespace {

// ForeignList makes the entries of one model from the model's own list of tensors, so that no shape is stated
// twice.
class ForeignList {
 public:
  explicit ForeignList(const ModelSpec& spec) {
    for (ParameterSpec& parameter : parameter_specs(spec)) {
      std::string name = parameter.name;
      parameters_.emplace(std::move(name), std::move(parameter));
    }
  }
  bool has(const std::string& parameter) const { return parameters_.contains(parameter); }

  // Adds a whole tensor, without the padding of a vocabulary.
  ForeignTensor& whole(std::string name, const std::string& parameter) {
    const ParameterSpec& ours = parameters_.at(parameter);
    ForeignTensor tensor{.name = std::move(name), .parameter = parameter, .rows = ours.shape[0]};
    if (ours.shape.size() > 1) tensor.columns = ours.shape[1];
    tensor.rows -= ours.padding_elements / tensor.row_elements();
    return list_.emplace_back(std::move(tensor));
  }
  // Adds a matrix and, where the model has one, its bias: "<name>.weight", "<name>.bias".
  void linear(const std::string& name, const std::string& layer, bool is_transposed) {
    whole(name + ".weight", layer + ".weight").is_transposed = is_transposed;
    if (has(layer + ".bias")) whole(name + ".bias", layer + ".bias");
  }
  // Adds the tensors that are stacked by rows in our `parameter`.
  void parts(const std::string& parameter, const std::vector<std::string>& names) {
    const ParameterSpec& ours = parameters_.at(parameter);
    std::uint64_t first = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::uint64_t rows = ours.row_groups.at(i);
      list_.push_back({.name = names[i],
                       .parameter = parameter,
                       .first_row = first,
                       .rows = rows,
                       .columns = ours.shape.size() > 1 ? ours.shape[1] : 0});
      first += rows;
    }
  }
  std::vector<ForeignTensor> take() { return std::move(list_); }

 private:
  std::map<std::string, ParameterSpec> parameters_;
  std::vector<ForeignTensor> list_;
};

std::vector<ForeignTensor> gpt2_tensors(const ModelSpec& spec) {
  constexpr bool conv1d = true;  // [in, out]
  ForeignList list(spec);
  list.whole("transformer.wte.weight", "embedding.token.weight");
  list.whole("transformer.wpe.weight", "embedding.position.weight");
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::string there = fmt::format("transformer.h.{}.", layer),
                      here = fmt::format("layers.{}.", layer);
    list.linear(there + "ln_1", here + "attention_norm", false);
    list.linear(there + "attn.c_attn", here + "attention.qkv", conv1d);
    list.linear(there + "attn.c_proj", here + "attention.output", conv1d);
    list.linear(there + "ln_2", here + "feed_forward_norm", false);
    list.linear(there + "mlp.c_fc", here + "feed_forward.up", conv1d);
    list.linear(there + "mlp.c_proj", here + "feed_forward.down", conv1d);
  }
  list.linear("transformer.ln_f", "final_norm", false);
  if (!spec.tied_head) list.whole("lm_head.weight", "head.weight");
  return list.take();
}

// Names of Llama, Qwen and Mistral: where a family has a part that others have not, its tensor is there.
std::vector<ForeignTensor> rotary_tensors(const ModelSpec& spec) {
  ForeignList list(spec);
  list.whole("model.embed_tokens.weight", "embedding.token.weight");
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::string there = fmt::format("model.layers.{}.", layer), here = fmt::format("layers.{}.", layer);
    list.whole(there + "input_layernorm.weight", here + "attention_norm.weight");
    for (const char* kind : {".weight", ".bias"}) {
      const std::string qkv = here + "attention.qkv" + kind, attention = there + "self_attn.";
      if (!list.has(qkv)) continue;
      list.parts(qkv,
                 {attention + "q_proj" + kind, attention + "k_proj" + kind, attention + "v_proj" + kind});
    }
    if (spec.has_head_norms) {
      list.whole(there + "self_attn.q_norm.weight", here + "attention.query_norm.weight");
      list.whole(there + "self_attn.k_norm.weight", here + "attention.key_norm.weight");
    }
    list.whole(there + "self_attn.o_proj.weight", here + "attention.output.weight");
    list.whole(there + "post_attention_layernorm.weight", here + "feed_forward_norm.weight");
    list.parts(here + "feed_forward.up.weight",
               {there + "mlp.gate_proj.weight", there + "mlp.up_proj.weight"});
    list.whole(there + "mlp.down_proj.weight", here + "feed_forward.down.weight");
  }
  list.whole("model.norm.weight", "final_norm.weight");
  if (!spec.tied_head) list.whole("lm_head.weight", "head.weight");
  return list.take();
}

}  // namespace

std::vector<std::uint64_t> ForeignTensor::shape() const {
  if (columns == 0) return {rows + padding_rows};
  if (is_transposed) return {columns, rows + padding_rows};
  return {rows + padding_rows, columns};
}

std::vector<ForeignTensor> hugging_face_tensors(const ModelSpec& spec) {
  return spec.positions > 0 ? gpt2_tensors(spec) : rotary_tensors(spec);
}

std::vector<ForeignTensor> llmc_tensors(const ModelSpec& spec) {
  ForeignList list(spec);
  ForeignTensor& embedding = list.whole("wte", "embedding.token.weight");
  const auto multiple = static_cast<std::uint64_t>(llmc_vocabulary_multiple);
  embedding.padding_rows = (multiple - embedding.rows % multiple) % multiple;
  list.whole("wpe", "embedding.position.weight");
  const std::vector<std::pair<const char*, const char*>> of_layers = {
      {"ln1w", "attention_norm.weight"},       {"ln1b", "attention_norm.bias"},
      {"qkvw", "attention.qkv.weight"},        {"qkvb", "attention.qkv.bias"},
      {"attprojw", "attention.output.weight"}, {"attprojb", "attention.output.bias"},
      {"ln2w", "feed_forward_norm.weight"},    {"ln2b", "feed_forward_norm.bias"},
      {"fcw", "feed_forward.up.weight"},       {"fcb", "feed_forward.up.bias"},
      {"fcprojw", "feed_forward.down.weight"}, {"fcprojb", "feed_forward.down.bias"}};
  for (const auto& [there, here] : of_layers) {
    for (std::int64_t layer = 0; layer < spec.layers; ++layer)
      list.whole(fmt::format("{}.{}", there, layer), fmt::format("layers.{}.{}", layer, here));
  }
  list.whole("lnfw", "final_norm.weight");
  list.whole("lnfb", "final_norm.bias");
  return list.take();
}

}  // namespace holdfast::interop
