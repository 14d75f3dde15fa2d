#include "kernels/op_outputs.h"

#include "kernels/visit_op.h"

namespace holdfast::kernels {
namespace {

void add(OpOutputs& outputs, const void* values, const Operand& operand) {
  if (!operand.is_written() || operand.access == Operand::Access::scratch) return;
  if (operand.content == Operand::Content::words) return;
  const bool gaps = operand.has_gaps() && !operand.pads;
  outputs.add({.values = values,
               .dtype = operand.dtype,
               .count = operand.extent,
               .row_columns = gaps ? operand.row_columns : 1,
               .row_stride = gaps ? operand.row_stride : 1,
               .may_be_infinite = operand.may_be_infinite});
}

}  // namespace

OpOutputs outputs_of(OpId id, const void* arguments) {
  return visit_op(id, arguments, []<typename Op>(const Op& op) {
    OpOutputs outputs;
    Op::visit_operands(op, [&](const auto& pointer, const Operand& each) { add(outputs, pointer, each); });
    return outputs;
  });
}

OpOutputs outputs_of(const OptimizerTensor& tensor, DType moments) {
  OpOutputs outputs;
  visit_updated_tensor(AdamW{.moments = moments}, tensor, [&](const auto& pointer, const Operand& each) {
    if (pointer != nullptr) add(outputs, pointer, each);
  });
  return outputs;
}

}  // namespace holdfast::kernels
