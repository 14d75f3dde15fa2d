// Tells which memory an op writes: what an inspector of ops (runtime/device/op_digests.h) looks at.
//
//   const OpOutputs outputs = outputs_of(id, arguments);
//   for (const OpOutput& output : outputs) digest(output.values, output.dtype, output.count);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/op.h"
#include "kernels/optimizer.h"
#include "runtime/core/check.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

// Describes a floating-point tensor that an op writes, in memory of its device.
struct OpOutput {
  const void* values = nullptr;
  DType dtype = DType::fp32;
  std::int64_t count = 0;  // from the first to the last element that is written, gaps between rows included
  // The op writes the first row_columns of each row_stride elements, and what is between is not its own; equal
  // where there are no gaps.
  std::int64_t row_columns = 1, row_stride = 1;
  // True where infinities are right: in the statistics of rows of which no column counts.
  bool may_be_infinite = false;
};

// Lists the outputs of one op, without an allocation.
class OpOutputs {
 public:
  static constexpr std::size_t most = 4;

  // Adds an output; one that is null or empty is left out.
  void add(const OpOutput& output) {
    if (output.values == nullptr || output.count <= 0) return;
    HF_CHECK(size_ < most, "an op with more than {} outputs", most);
    outputs_[size_++] = output;
  }
  std::size_t size() const { return size_; }
  const OpOutput& operator[](std::size_t index) const { return outputs_[index]; }
  const OpOutput* begin() const { return outputs_.data(); }
  const OpOutput* end() const { return outputs_.data() + size_; }

 private:
  std::array<OpOutput, most> outputs_ = {};
  std::size_t size_ = 0;
};

// Returns what an op writes. `arguments` is the struct of `id`; memory is not read. Left out are:
//   - scratch memory: delta of AttentionBackward, which some implementations do not use;
//   - the digests of TensorDigest and OptimizerDigest, which are integers;
//   - the targets of FillZero and Copy, which have no type and may be memory that only the host reaches;
//   - table_gradient of EmbeddingBackward where it is that of the whole table: the op does not know its size;
//   - all of updates, whose table of tensors the host may not be able to read: see outputs_of(OptimizerTensor).
// An op on a slice of an embedding writes only the rows of the slice's tokens: all rows are named.
OpOutputs outputs_of(OpId id, const void* arguments);
template <typename Op, OpId id = Op::id>
OpOutputs outputs_of(const Op& op) {
  return outputs_of(id, &op);
}

// Returns what an update writes of one tensor of its table: weight, the moments that it has, of that type, and copy.
OpOutputs outputs_of(const OptimizerTensor& tensor, DType moments);

}  // namespace holdfast::kernels
