// WrongProduct makes matrix products of the CPU device wrong in one tile of their result, for tests
// (DeviceFault): what a broken unit of a processor does, where everything else goes on.
//
// Threads: that of the queue.
#pragma once

#include <optional>

#include "kernels/matmul.h"
#include "runtime/core/device_fault.h"

namespace holdfast::inline device {

// Adds an error to the elements of one tile of 16 x 16 of C, in the middle of it (less where C is smaller):
// 2^8 times the first element of the tile that is finite and not 0, or 2^8 if there is none. The result is
// finite where that product is.
void spoil_tile(const Matmul& op);

class WrongProduct {
 public:
  // From now on, the next product is wrong, or that and every later one of its shape.
  void begin(DeviceFault fault) {
    fault_ = fault;
    of_shape_.reset();
  }
  // Called after each op that has run. `arguments` is the struct of the op.
  void after(OpId id, const void* arguments);

 private:
  std::optional<DeviceFault> fault_;
  std::optional<Matmul> of_shape_;  // the first product that was spoiled
};

}  // namespace holdfast::inline device
