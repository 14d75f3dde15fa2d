#include "kernels/embedding.h"

#include "kernels/reference/element.h"

namespace holdfast {

void reference(const EmbeddingForward& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    for (std::int64_t i = 0; i < op.width; ++i) {
      double x = element(op.table, op.tokens[row] * op.width + i, op.dtype);
      if (op.positions != nullptr)
        x += element(op.positions, row % op.sequence_length * op.width + i, op.dtype);
      set_element(op.x, row * op.width + i, op.dtype, x);
    }
  }
}

void reference(const EmbeddingBackward& op) {
  const auto add = [](float& target, double value) {
    target = static_cast<float>(static_cast<double>(target) + value);
  };
  for (std::int64_t row = 0; row < op.rows; ++row) {
    for (std::int64_t i = 0; i < op.width; ++i) {
      const double dx = element(op.dx, row * op.width + i, op.dtype);
      add(op.table_gradient[op.tokens[row] * op.width + i], dx);
      if (op.positions_gradient != nullptr) {
        add(op.positions_gradient[row % op.sequence_length * op.width + i], dx);
      }
    }
  }
}

}  // namespace holdfast
