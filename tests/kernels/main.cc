// As gtest_main, with the tests that follow from the registry.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_cases.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  holdfast::test::register_kernel_tests(holdfast::kernels::kernel_registry());
  return RUN_ALL_TESTS();
}
