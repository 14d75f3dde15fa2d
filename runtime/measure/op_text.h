// Text of ops: the name of an op of one shape in tables, and the part of a step that it belongs to.
#pragma once

#include <string>
#include <string_view>

#include "kernels/op.h"

namespace holdfast::measure {

// Shape, types and options, without the op's name: "256x768x3072 NT bias" for a matmul of m x n x k with B
// transposed, "4x64 12/12 heads of 64" for attention. Equal texts are equal work. `arguments` is the struct
// of `id`.
std::string shape_text(OpId id, const void* arguments);

enum class OpClass {
  matmul,
  attention,
  norm,
  activation,
  residual,
  embedding,
  cross_entropy,
  bias_gradient,
  optimizer,
  copy
};
inline constexpr int op_class_count = 10;
OpClass class_of(OpId id);
std::string_view name_of(OpClass op_class);

// Ops that go through the parameters, gradients or moments: in a step each of their calls touches memory that
// no other call of the same op touches, so what they move comes from where all of it together lives.
bool once_per_step(OpId id);

}  // namespace holdfast::measure
