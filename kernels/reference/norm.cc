#include "kernels/norm.h"

#include <cmath>

#include "kernels/reference/element.h"

namespace holdfast::kernels {

namespace {

struct Statistics {
  double mean = 0;
  double rstd = 0;
};

// Computes the statistics of `width` elements from `first`; about zero for RMSNorm.
Statistics statistics(const void* x, std::int64_t first, std::int64_t width, DType dtype, float epsilon,
                      bool about_mean) {
  Statistics result;
  for (std::int64_t i = 0; about_mean && i < width; ++i) result.mean += element(x, first + i, dtype);
  result.mean /= static_cast<double>(width);
  double squares = 0;
  for (std::int64_t i = 0; i < width; ++i) {
    const double centered = element(x, first + i, dtype) - result.mean;
    squares += centered * centered;
  }
  result.rstd = 1.0 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(epsilon));
  return result;
}

// Computes dx of one row; `mean_term` is false for RMSNorm.
template <typename Op>
void backward_row(const Op& op, std::int64_t first, double mean, double rstd, bool mean_term) {
  const auto normal = [&](std::int64_t i) { return (element(op.x, first + i, op.dtype) - mean) * rstd; };
  const auto g = [&](std::int64_t i) {
    return element(op.dy, first + i, op.dtype) * element(op.weight, i, op.dtype);
  };
  double g_mean = 0;
  double g_normal_mean = 0;
  for (std::int64_t i = 0; i < op.width; ++i) {
    g_mean += g(i) / static_cast<double>(op.width);
    g_normal_mean += g(i) * normal(i) / static_cast<double>(op.width);
  }
  for (std::int64_t i = 0; i < op.width; ++i) {
    double dx = rstd * (g(i) - (mean_term ? g_mean : 0.0) - normal(i) * g_normal_mean);
    if (op.dresidual != nullptr) dx += element(op.dresidual, first + i, op.dtype);
    set_element(op.dx, first + i, op.dtype, dx);
  }
}

void set_gradient(float& gradient, double sum, bool accumulate) {
  const auto rounded = static_cast<float>(sum);
  gradient = accumulate ? gradient + rounded : rounded;
}

}  // namespace

void reference(const LayerNormForward& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    const std::int64_t first = row * op.width;
    const Statistics of_row = statistics(op.x, first, op.width, op.dtype, op.epsilon, true);
    for (std::int64_t i = 0; i < op.width; ++i) {
      const double normal = (element(op.x, first + i, op.dtype) - of_row.mean) * of_row.rstd;
      const double y = normal * element(op.weight, i, op.dtype) + element(op.bias, i, op.dtype);
      set_element(op.y, first + i, op.dtype, y);
    }
    op.mean[row] = static_cast<float>(of_row.mean);
    op.rstd[row] = static_cast<float>(of_row.rstd);
  }
}

void reference(const RmsNormForward& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    const std::int64_t first = row * op.width;
    const Statistics of_row = statistics(op.x, first, op.width, op.dtype, op.epsilon, false);
    for (std::int64_t i = 0; i < op.width; ++i) {
      const double y = element(op.x, first + i, op.dtype) * of_row.rstd * element(op.weight, i, op.dtype);
      set_element(op.y, first + i, op.dtype, y);
    }
    op.rstd[row] = static_cast<float>(of_row.rstd);
  }
}

void reference(const LayerNormBackward& op) {
  for (std::int64_t i = 0; i < op.width; ++i) {
    double weight_gradient = 0.0, bias_gradient = 0.0, dresidual_sum = 0.0;
    for (std::int64_t row = 0; row < op.rows; ++row) {
      const double x = element(op.x, row * op.width + i, op.dtype);
      const double dy = element(op.dy, row * op.width + i, op.dtype);
      weight_gradient += dy * (x - static_cast<double>(op.mean[row])) * static_cast<double>(op.rstd[row]);
      bias_gradient += dy;
      if (op.dresidual_sum != nullptr) dresidual_sum += element(op.dresidual, row * op.width + i, op.dtype);
    }
    set_gradient(op.weight_gradient[i], weight_gradient, op.accumulate);
    set_gradient(op.bias_gradient[i], bias_gradient, op.accumulate);
    if (op.dresidual_sum != nullptr) set_gradient(op.dresidual_sum[i], dresidual_sum, op.accumulate);
  }
  for (std::int64_t row = 0; row < op.rows; ++row) {
    backward_row(op, row * op.width, static_cast<double>(op.mean[row]), static_cast<double>(op.rstd[row]),
                 true);
  }
}

void reference(const RmsNormBackward& op) {
  for (std::int64_t i = 0; i < op.width; ++i) {
    double gradient = 0.0;
    for (std::int64_t row = 0; row < op.rows; ++row) {
      const std::int64_t at = row * op.width + i;
      gradient +=
          element(op.dy, at, op.dtype) * element(op.x, at, op.dtype) * static_cast<double>(op.rstd[row]);
    }
    set_gradient(op.weight_gradient[i], gradient, op.accumulate);
  }
  for (std::int64_t row = 0; row < op.rows; ++row) {
    backward_row(op, row * op.width, 0.0, static_cast<double>(op.rstd[row]), false);
  }
}

}  // namespace holdfast::kernels
