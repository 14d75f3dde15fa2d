// Maps the tensors of a model to their names and layouts in files of other programs. Here a projection of
// several parts is one matrix [out, in] with the parts stacked by rows (queries, keys, values; gate, up). In
// other files a part may be a tensor of its own, or the matrix may be stored [in, out].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/spec.h"

namespace holdfast::interop {

// ForeignTensor is one tensor of a foreign file, with the rows of our tensor that it holds.
struct ForeignTensor {
  std::string name;       // name in the foreign file
  std::string parameter;  // name of our tensor
  std::uint64_t first_row = 0, rows = 0;
  std::uint64_t columns = 0;       // 0: a vector of `rows` elements
  bool is_transposed = false;      // stored [columns, rows] in the foreign file
  std::uint64_t padding_rows = 0;  // rows at the end of the foreign tensor: zero, and not used
  std::vector<std::uint64_t> shape() const;
  std::uint64_t row_elements() const { return columns == 0 ? 1 : columns; }
  std::uint64_t elements() const { return (rows + padding_rows) * row_elements(); }
};

// Returns the tensors of the family's class in transformers (GPT2LMHeadModel, LlamaForCausalLM, Qwen3ForCausalLM, ...);
// a tied head has no tensor there.
// Rotary heads have the same order as ours (kernels/rotary.h), so queries and keys are copied unchanged.
std::vector<ForeignTensor> hugging_face_tensors(const ModelSpec& spec);
// Returns the tensors of a model file of karpathy/llm.c, in the order of the file. `spec` must be of GPT-2's
// style with a tied head. A tensor of the file covers all layers; the part of one layer has a name such as
// "qkvw.3".
std::vector<ForeignTensor> llmc_tensors(const ModelSpec& spec);

inline constexpr std::int64_t llmc_vocabulary_multiple = 128;

}  // namespace holdfast::interop
