#include "kernels/tree_sum.h"

#include "kernels/reference/element.h"

namespace holdfast::kernels {

namespace {

// Adds in double and rounds each sum to fp32: the bits are those of fp32 additions, in any order of subtrees.
float tree(const float* const* parts, int count, std::int64_t i) {
  if (count == 1) return parts[0][i];
  const float left = tree(parts, count / 2, i), right = tree(parts + count / 2, count / 2, i);
  return static_cast<float>(static_cast<double>(left) + static_cast<double>(right));
}

}  // namespace

void reference(const TreeSum& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    for (std::int64_t column = 0; column < op.columns; ++column) {
      const std::int64_t i = row * op.columns + column;
      double sum = static_cast<double>(tree(op.parts, op.part_count, i));
      if (op.bias != nullptr) sum += element(op.bias, column, op.dtype);
      set_element(op.y, i, op.dtype, sum);
    }
  }
}

}  // namespace holdfast::kernels
