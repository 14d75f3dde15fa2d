#include "runtime/core/digest.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace holdfast::test {
namespace {

TEST(Digest, KnownAnswerOfXxh3) {
  EXPECT_EQ(to_hex(digest_of(std::string_view())), "99aa06d3014798d86001c324468d497f");
}

TEST(Digest, HexRoundTrip) {
  const Digest digest{.high = 0x0123456789abcdef, .low = 0xfedcba9876543210};
  Digest read;
  ASSERT_TRUE(from_hex(to_hex(digest), read));
  EXPECT_EQ(read, digest);
}

TEST(Digest, HexRefusesOtherText) {
  Digest read{.high = 1, .low = 2};
  EXPECT_FALSE(from_hex("", read));
  EXPECT_FALSE(from_hex("0123", read));
  EXPECT_FALSE(from_hex("0123456789abcdef0123456789abcdeg", read));
  EXPECT_FALSE(from_hex("0123456789ABCDEF0123456789ABCDEF", read));
  EXPECT_FALSE(from_hex("0123456789abcdef0123456789abcdef0", read));
  EXPECT_EQ(read, (Digest{.high = 1, .low = 2})) << "a refused text must not change the target";
}

TEST(DigestStream, PiecesEqualTheWhole) {
  const std::string text(5000, 'x');
  for (const std::size_t first : {0u, 1u, 255u, 256u, 1024u, 4999u, 5000u}) {
    DigestStream stream;
    stream.add(std::string_view(text).substr(0, first));
    stream.add(std::string_view(text).substr(first));
    EXPECT_EQ(stream.finish(), digest_of(text)) << first;
  }
}

TEST(DigestStream, IntegersAreLittleEndian) {
  DigestStream stream;
  stream.add(std::uint64_t{0x0807060504030201});
  EXPECT_EQ(stream.finish(), digest_of(std::string_view("\x01\x02\x03\x04\x05\x06\x07\x08")));
}

TEST(Digest, SumDoesNotDependOnOrderAndWraps) {
  const Digest a = digest_of("a");
  const Digest b = digest_of("b");
  Digest ab = a;
  ab += b;
  Digest ba = b;
  ba += a;
  EXPECT_EQ(ab, ba);
  Digest top{.high = std::numeric_limits<std::uint64_t>::max(),
             .low = std::numeric_limits<std::uint64_t>::max()};
  top += Digest{.high = 1, .low = 2};
  EXPECT_EQ(top, (Digest{.high = 0, .low = 1}));
}

TEST(Digest, ChainDependsOnOrderAndHistory) {
  const Digest a = digest_of("a");
  const Digest b = digest_of("b");
  EXPECT_NE(chain(a, b), chain(b, a));
  EXPECT_NE(chain(chain({}, a), b), chain(chain({}, b), a));
  DigestStream stream;
  for (const std::uint64_t word : {a.high, a.low, b.high, b.low}) stream.add(word);
  EXPECT_EQ(chain(a, b), stream.finish());
}

}  // namespace
}  // namespace holdfast::test
