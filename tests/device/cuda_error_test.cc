#include "runtime/device/cuda_error.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace holdfast::test {
namespace {

// Every code up to 1000, which is more than CUDA has: exactly these are sticky.
TEST(CudaErrorClass, Table) {
  const int sticky[] = {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911};
  for (int code = 0; code <= 1000; ++code) {
    const bool listed = std::find(std::begin(sticky), std::end(sticky), code) != std::end(sticky);
    const CudaErrorClass expected = code == 0     ? CudaErrorClass::none
                                    : code == 600 ? CudaErrorClass::not_ready
                                    : listed      ? CudaErrorClass::sticky
                                                  : CudaErrorClass::recoverable;
    EXPECT_EQ(cuda_error_class(code), expected) << code;
  }
}

}  // namespace
}  // namespace holdfast::test
