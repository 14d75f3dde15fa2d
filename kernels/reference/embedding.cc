#include "kernels/embedding.h"

#include "kernels/reference/element.h"

namespace holdfast::kernels {

namespace {

// The row of the op's table that has the row's token, or -1.
template <typename Embedding>
std::int64_t table_row(const Embedding& op, std::int64_t row) {
  const std::int64_t token = op.tokens[row];
  if (op.token_count == 0) return token;
  const bool here = token >= op.first_token && token < op.first_token + op.token_count;
  return here ? token - op.first_token : -1;
}

}  // namespace

void reference(const EmbeddingForward& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    const std::int64_t from = table_row(op, row);
    if (from < 0) continue;
    for (std::int64_t i = 0; i < op.width; ++i) {
      double x = element(op.table, from * op.width + i, op.dtype);
      if (op.positions != nullptr)
        x += element(op.positions, row % op.sequence_length * op.width + i, op.dtype);
      set_element(op.x, row * op.width + i, op.dtype, op.token_count == 0 ? x : x + 0.0);
    }
  }
}

void reference(const EmbeddingBackward& op) {
  const auto add = [](float& target, double value) {
    target = static_cast<float>(static_cast<double>(target) + value);
  };
  for (std::int64_t row = 0; row < op.rows; ++row) {
    const std::int64_t to = table_row(op, row);
    for (std::int64_t i = 0; i < op.width; ++i) {
      const double dx = element(op.dx, row * op.width + i, op.dtype);
      if (to >= 0) add(op.table_gradient[to * op.width + i], dx);
      if (op.positions_gradient != nullptr) {
        add(op.positions_gradient[row % op.sequence_length * op.width + i], dx);
      }
    }
  }
}

}  // namespace holdfast::kernels
