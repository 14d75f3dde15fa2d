// How the tensors of a model are called and laid out in files of others. Here a projection of several parts
// is one matrix [out, in] with the parts one below the other (queries, keys, values; gate, up); there a part
// may be a tensor of its own, or the matrix may be stored [in, out].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/spec.h"

namespace holdfast::inline interop {

// One tensor of a foreign file, and the rows of one of ours that it is.
struct ForeignTensor {
  std::string name;       // there
  std::string parameter;  // here
  std::uint64_t first_row = 0, rows = 0;
  std::uint64_t columns = 0;       // 0: a vector of `rows` elements
  bool is_transposed = false;      // [columns, rows] there
  std::uint64_t padding_rows = 0;  // there, below: zero, and not used
  std::vector<std::uint64_t> shape() const;
  std::uint64_t row_elements() const { return columns == 0 ? 1 : columns; }
  std::uint64_t elements() const { return (rows + padding_rows) * row_elements(); }
};

// transformers' GPT2LMHeadModel and LlamaForCausalLM; a tied head is not there. Rotary heads are in the same
// order as ours (kernels/rotary.h), so queries and keys go as they are.
std::vector<ForeignTensor> hugging_face_tensors(const ModelSpec& spec);
// The model file of karpathy/llm.c, in the order of the file; spec is of GPT-2's style with a tied head. The
// parts of a file are "of all layers": a layer's tensor has the name "qkvw.3".
std::vector<ForeignTensor> llmc_tensors(const ModelSpec& spec);

inline constexpr std::int64_t llmc_vocabulary_multiple = 128;

}  // namespace holdfast::inline interop
