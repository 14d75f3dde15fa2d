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

TEST(CudaErrorRemedy, IsThereForThoseOfTheMachineAlone) {
  for (int code = 0; code <= 1000; ++code) {
    const std::string_view remedy = remedy_of_cuda_error(code);
    const bool is_of_machine = code == 46 || code == 802 || code == 803 || code == 999;
    EXPECT_EQ(remedy.starts_with("; "), is_of_machine) << code;
    EXPECT_EQ(remedy.empty(), !is_of_machine) << code;
  }
  EXPECT_NE(remedy_of_cuda_error(802).find("nvidia-fabricmanager"), std::string_view::npos);
}

}  // namespace
}  // namespace holdfast::test
