#include "runtime/core/available_memory.h"

#include <gtest/gtest.h>

namespace holdfast {
namespace {

TEST(AvailableMemory, IsWhatTheHostCanStillGive) {
  EXPECT_EQ(available_of_meminfo("MemTotal:       100 kB\nMemAvailable:    40 kB\nSwapFree:        2 kB\n"),
            42u * 1024);
  EXPECT_EQ(available_of_meminfo("MemAvailable:    40 kB\n"), 40u * 1024);
  EXPECT_FALSE(available_of_meminfo("").has_value());
  EXPECT_FALSE(available_of_meminfo("MemTotal:  100 kB\nNotMemAvailable: 3 kB\n").has_value());
}

TEST(AvailableMemory, IsWhatAGroupHasLeft) {
  const std::string stat = "anon 600\nfile 300\ninactive_file 200\n";
  EXPECT_EQ(available_of_group("1000\n", "900\n", stat), 300u);
  EXPECT_EQ(available_of_group("1000\n", "900\n", ""), 100u);
  EXPECT_EQ(available_of_group("1000\n", "5000\n", stat), 0u);
  EXPECT_FALSE(available_of_group("max\n", "900\n", stat).has_value());
  EXPECT_FALSE(available_of_group("", "", "").has_value());
}

TEST(AvailableMemory, IsKnownOnThisSystem) {
  const std::optional<std::uint64_t> bytes = available_memory_bytes(posix_env());
  ASSERT_TRUE(bytes.has_value());
  EXPECT_GT(*bytes, std::uint64_t{1} << 20);
}

}  // namespace
}  // namespace holdfast
