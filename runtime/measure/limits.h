// Limits: the highest rates of a device, which the time of an op is compared with. Measured on the same
// machine in the same run (host_limits.h, gpu_limits.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/cost.h"
#include "kernels/matmul.h"
#include "runtime/core/result.h"
#include "runtime/core/tensor.h"

namespace holdfast::measure {

// Call while the device is idle. Asking again gives the first answer.
class Limits {
 public:
  virtual ~Limits() = default;

  // Returns the time to move the bytes that the op must move.
  virtual Result<double> stream_seconds(const OpCost& cost) = 0;
  // Returns the time of one matrix product of this shape.
  virtual double product_seconds(const Matmul& shape) = 0;
  // Returns the FLOP/s of one large square product.
  virtual double product_rate(DType dtype) = 0;
  virtual void forget() = 0;  // measures anew when asked again, where other programs can be in the way

  // Returns the memory that holds so many bytes for an op: "L2", "L3", "DRAM".
  virtual std::string level_of(std::uint64_t bytes) const = 0;
  // Returns a description of product_seconds() for sentences: "oneDNN's own rate".
  virtual std::string_view product_name() const = 0;
};

// Returns the limit of any op that is not a matrix product: the larger of its bytes and its multiplications.
inline Result<double> op_seconds(Limits& limits, const OpCost& cost, DType dtype) {
  HF_TRY(const double stream, limits.stream_seconds(cost));
  return cost.flops > 0.0 ? std::max(stream, cost.flops / limits.product_rate(dtype)) : stream;
}

}  // namespace holdfast::measure
