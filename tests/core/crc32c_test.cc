#include "runtime/core/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "runtime/core/random.h"

namespace holdfast::test {
namespace {

std::span<const std::byte> bytes_of_text(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::vector<std::byte> random_bytes(std::size_t count) {
  const RandomStream stream(1, 2);
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(stream.bits(i));
  return bytes;
}

TEST(Crc32c, KnownAnswers) {
  EXPECT_EQ(crc32c(bytes_of_text("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(bytes_of_text("")), 0u);
  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
  EXPECT_EQ(detail::crc32c_by_table(bytes_of_text("123456789"), 0), 0xe3069283u);
}

TEST(Crc32c, InstructionAndTableAgreeOnAllSizesAndAlignments) {
  const std::vector<std::byte> bytes = random_bytes(100'000);
  const std::span<const std::byte> all(bytes);
  for (const std::size_t size :
       {0u,   1u,   7u,    8u,    9u,     63u,    255u,   256u,   767u,   768u,  769u,
        775u, 776u, 1536u, 8191u, 24575u, 24576u, 24577u, 25344u, 49155u, 99991u}) {
    for (std::size_t offset = 0; offset < 9; ++offset) {
      const auto part = all.subspan(offset, size);
      EXPECT_EQ(crc32c(part, 0x1234u), detail::crc32c_by_table(part, 0x1234u)) << size << " at " << offset;
    }
  }
}

TEST(Crc32c, SeedContinues) {
  const std::vector<std::byte> bytes = random_bytes(30'001);
  const std::span<const std::byte> all(bytes);
  for (const std::size_t first : {0u, 1u, 255u, 768u, 24576u, 30'001u}) {
    EXPECT_EQ(crc32c(all.subspan(first), crc32c(all.first(first))), crc32c(all));
  }
}

TEST(Crc32c, PartsAreJoined) {
  const std::vector<std::byte> bytes = random_bytes(30'001);
  const std::span<const std::byte> all(bytes);
  for (const std::size_t first : {0u, 1u, 255u, 768u, 24576u, 30'000u, 30'001u}) {
    const std::span<const std::byte> rest = all.subspan(first);
    EXPECT_EQ(crc32c_joined(crc32c(all.first(first)), crc32c(rest), rest.size()), crc32c(all)) << first;
  }
}

TEST(Crc32c, EveryFlippedBitIsSeen) {
  std::vector<std::byte> bytes = random_bytes(1000);
  const std::uint32_t good = crc32c(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const std::byte mask{static_cast<unsigned char>(1u << (bit % 8))};
    bytes[bit / 8] ^= mask;
    ASSERT_NE(crc32c(bytes), good) << bit;
    bytes[bit / 8] ^= mask;
  }
}

}  // namespace
}  // namespace holdfast::test
