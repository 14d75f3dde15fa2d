// DeviceFault: the ways in which a kernel breaks its device or computes wrong numbers, for tests: fault
// points request them and devices perform them.
#pragma once

namespace holdfast::core {

enum class DeviceFault {
  trap,             // the kernel is aborted: cudaErrorLaunchFailure
  illegal_address,  // it reads unmapped memory: cudaErrorIllegalAddress
  endless,          // it never ends, and later work in the queue never runs
  wrong_product,    // the next matrix product has an error in one tile of its result
  wrong_products,   // the same, and every later product of that shape, as of a broken unit
};

// Returns whether the fault leaves the device usable and makes its numbers wrong.
constexpr bool is_wrong_product(DeviceFault fault) {
  return fault == DeviceFault::wrong_product || fault == DeviceFault::wrong_products;
}

}  // namespace holdfast::core
