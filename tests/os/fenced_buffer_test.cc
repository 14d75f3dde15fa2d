#include "runtime/os/fenced_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace holdfast::test {
namespace {

TEST(FencedBuffer, EndsAtMemoryThatNobodyMayTouch) {
  const os::FencedBuffer buffer(5000);
  ASSERT_GE(buffer.bytes().size(), 5000U);
  std::ranges::fill(buffer.bytes(), std::byte{1});
  const volatile std::byte* const end = buffer.bytes().data() + buffer.bytes().size();
  EXPECT_DEATH(
      {
        const std::byte past = *end;
        static_cast<void>(past);
      },
      "");
}

}  // namespace
}  // namespace holdfast::test
