#include "kernels/optimizer.h"

#include <cmath>

#include "runtime/core/shard_spec.h"

namespace holdfast::inline kernels {

namespace {

void update(const AdamW& op, const AdamWTensor& tensor) {
  const double beta1 = static_cast<double>(op.beta1);
  const double beta2 = static_cast<double>(op.beta2);
  for (std::int64_t i = 0; i < tensor.count; ++i) {
    const double g = static_cast<double>(tensor.gradient[i]) * static_cast<double>(op.gradient_scale);
    const double m = beta1 * static_cast<double>(tensor.moment1[i]) + (1.0 - beta1) * g;
    const double v = beta2 * static_cast<double>(tensor.moment2[i]) + (1.0 - beta2) * g * g;
    const double root = std::sqrt(v / static_cast<double>(op.correction2));
    const double direction =
        m / static_cast<double>(op.correction1) / (root + static_cast<double>(op.epsilon));
    const double w = static_cast<double>(tensor.weight[i]);
    const double decayed = static_cast<double>(tensor.weight_decay) * w + direction;
    tensor.moment1[i] = static_cast<float>(m);
    tensor.moment2[i] = static_cast<float>(v);
    tensor.weight[i] = static_cast<float>(w - static_cast<double>(op.learning_rate) * decayed);
    if (tensor.copy != nullptr) tensor.copy[i] = to_bfloat16(tensor.weight[i]);
  }
}

}  // namespace

void reference(const AdamW& op) {
  for (std::int64_t t = 0; t < op.tensor_count; ++t) update(op, op.tensors[t]);
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

}  // namespace holdfast::inline kernels
