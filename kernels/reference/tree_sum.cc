#include "kernels/tree_sum.h"

#include "kernels/reference/element.h"

namespace holdfast::kernels {

namespace {

// Adds in double and rounds the sum to fp32: the bits are those of an fp32 addition.
float plus(float a, double b) {
  return static_cast<float>(static_cast<double>(a) + b);
}

float tree(const float* const* parts, int count, std::int64_t i) {
  if (count == 1) return parts[0][i];
  return plus(tree(parts, count / 2, i), static_cast<double>(tree(parts + count / 2, count / 2, i)));
}

}  // namespace

void reference(const TreeSum& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    for (std::int64_t column = 0; column < op.columns; ++column) {
      const std::int64_t i = row * op.columns + column;
      float sum = tree(op.parts, op.part_count, i);
      if (op.bias != nullptr) sum = plus(sum, element(op.bias, column, op.dtype));
      if (op.residual != nullptr) sum = plus(sum, element(op.residual, i, op.dtype));
      set_element(op.y, i, op.dtype, static_cast<double>(sum));
    }
  }
}

}  // namespace holdfast::kernels
