#include "kernels/rotary.h"

#include "kernels/reference/element.h"

namespace holdfast::kernels {

void reference(const Rotary& op) {
  const std::int64_t half = op.head_size / 2;
  for (std::int64_t row = 0; row < op.rows; ++row) {
    for (std::int64_t head = 0; head < op.heads; ++head) {
      for (std::int64_t i = 0; i < half; ++i) {
        const std::int64_t angle = row % op.sequence_length * half + i;
        const double cosine = static_cast<double>(op.cosine[angle]);
        const double sine = static_cast<double>(op.sine[angle]) * (op.inverse ? -1.0 : 1.0);
        const std::int64_t low_index = row * op.row_stride + head * op.head_size + i;
        const double low = element(op.x, low_index, op.dtype);
        const double high = element(op.x, low_index + half, op.dtype);
        set_element(op.x, low_index, op.dtype, low * cosine - high * sine);
        set_element(op.x, low_index + half, op.dtype, high * cosine + low * sine);
      }
    }
  }
}

}  // namespace holdfast::kernels
