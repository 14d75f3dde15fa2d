#include "kernels/activation.h"

#include <cmath>
#include <numbers>

#include "kernels/reference/element.h"

namespace holdfast::kernels {

namespace {

const double gelu_scale = std::sqrt(2.0 / std::numbers::pi);
constexpr double gelu_cubic = 0.044715;

double gelu(double x) {
  return 0.5 * x * (1.0 + std::tanh(gelu_scale * (x + gelu_cubic * x * x * x)));
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

}  // namespace

void reference(const GeluForward& op) {
  for (std::int64_t i = 0; i < op.count; ++i)
    set_element(op.y, i, op.dtype, gelu(element(op.x, i, op.dtype)));
}

double reference_gelu_slope(double x) {
  const double tanh_u = std::tanh(gelu_scale * (x + gelu_cubic * x * x * x));
  const double slope_of_u = gelu_scale * (1.0 + 3.0 * gelu_cubic * x * x);
  return 0.5 * (1.0 + tanh_u) + 0.5 * x * (1.0 - tanh_u * tanh_u) * slope_of_u;
}

void reference(const SwigluForward& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    for (std::int64_t i = 0; i < op.feed_forward; ++i) {
      const std::int64_t gate_index = row * 2 * op.feed_forward + i;
      const double gate = element(op.x, gate_index, op.dtype);
      const double up = element(op.x, gate_index + op.feed_forward, op.dtype);
      set_element(op.y, row * op.feed_forward + i, op.dtype, gate * sigmoid(gate) * up);
    }
  }
}

void reference(const SwigluBackward& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    for (std::int64_t i = 0; i < op.feed_forward; ++i) {
      const std::int64_t gate_index = row * 2 * op.feed_forward + i;
      const double gate = element(op.x, gate_index, op.dtype);
      const double up = element(op.x, gate_index + op.feed_forward, op.dtype);
      const double dy = element(op.dy, row * op.feed_forward + i, op.dtype);
      const double s = sigmoid(gate);
      set_element(op.dx, gate_index, op.dtype, dy * up * s * (1.0 + gate * (1.0 - s)));
      set_element(op.dx, gate_index + op.feed_forward, op.dtype, dy * gate * s);
    }
  }
}

}  // namespace holdfast::kernels
