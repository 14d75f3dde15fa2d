#include "kernels/optimizer.h"

#include <cmath>

#include "runtime/core/shard_spec.h"

namespace holdfast {

void reference(const AdamW& op) {
  const double beta1 = static_cast<double>(op.beta1);
  const double beta2 = static_cast<double>(op.beta2);
  for (std::int64_t i = 0; i < op.count; ++i) {
    const double g = static_cast<double>(op.gradient[i]) * static_cast<double>(op.gradient_scale);
    const double m = beta1 * static_cast<double>(op.moment1[i]) + (1.0 - beta1) * g;
    const double v = beta2 * static_cast<double>(op.moment2[i]) + (1.0 - beta2) * g * g;
    const double root = std::sqrt(v / static_cast<double>(op.correction2));
    const double direction =
        m / static_cast<double>(op.correction1) / (root + static_cast<double>(op.epsilon));
    const double w = static_cast<double>(op.weight[i]);
    const double decayed = static_cast<double>(op.weight_decay) * w + direction;
    op.moment1[i] = static_cast<float>(m);
    op.moment2[i] = static_cast<float>(v);
    op.weight[i] = static_cast<float>(w - static_cast<double>(op.learning_rate) * decayed);
    if (op.copy != nullptr) op.copy[i] = to_bfloat16(op.weight[i]);
  }
}

void reference(const SquareSum& op) {
  constexpr std::int64_t block = static_cast<std::int64_t>(block_elements);
  for (std::int64_t first = 0; first < op.count; first += block) {
    double sum = 0;
    for (std::int64_t i = first; i < op.count && i < first + block; ++i) {
      sum += static_cast<double>(op.values[i]) * static_cast<double>(op.values[i]);
    }
    op.sums[first / block] = sum;
  }
}

}  // namespace holdfast
