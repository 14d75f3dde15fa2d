#include "runtime/device/cpu/wrong_product.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/element.h"

namespace holdfast::inline device {
namespace {

bool same_shape(const Matmul& a, const Matmul& b) {
  return a.m == b.m && a.n == b.n && a.k == b.k && a.transpose_a == b.transpose_a &&
         a.transpose_b == b.transpose_b && a.accumulate == b.accumulate && a.dtype == b.dtype &&
         a.dtype_c == b.dtype_c;
}

}  // namespace

void spoil_tile(const Matmul& op) {
  constexpr std::int64_t side = 16;
  constexpr double factor = 256.0;
  const auto first_of = [](std::int64_t count) { return count / side / 2 * side; };
  const std::int64_t row_begin = first_of(op.m), row_end = std::min(op.m, row_begin + side);
  const std::int64_t column_begin = first_of(op.n), column_end = std::min(op.n, column_begin + side);
  std::optional<double> error;
  const auto for_each = [&](const auto& visit) {
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      for (std::int64_t column = column_begin; column < column_end; ++column) visit(row * op.ldc + column);
    }
  };
  for_each([&](std::int64_t index) {
    const double value = element(op.c, index, op.dtype_c);
    if (!error.has_value() && std::isfinite(value) && std::abs(value) > 0.0) error = factor * value;
  });
  for_each([&](std::int64_t index) {
    set_element(op.c, index, op.dtype_c, element(op.c, index, op.dtype_c) + error.value_or(factor));
  });
}

void WrongProduct::after(OpId id, const void* arguments) {
  if (!fault_.has_value() || id != Matmul::id) return;
  const auto& op = *static_cast<const Matmul*>(arguments);
  if (of_shape_.has_value() && !same_shape(*of_shape_, op)) return;
  of_shape_ = op;
  spoil_tile(op);
  if (*fault_ == DeviceFault::wrong_product) fault_.reset();
}

}  // namespace holdfast::inline device
