#include "runtime/core/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace holdfast::test {
namespace {

TEST(Units, ParseDuration) {
  EXPECT_EQ(parse_duration("3h50m").value(), 13'800'000);
  EXPECT_EQ(parse_duration("30s").value(), 30'000);
  EXPECT_EQ(parse_duration("500ms").value(), 500);
  EXPECT_EQ(parse_duration("90").value(), 90'000);
  EXPECT_EQ(parse_duration("0.5").value(), 500);
  EXPECT_EQ(parse_duration("1.5h").value(), 5'400'000);
  EXPECT_EQ(parse_duration(" 2d ").value(), 172'800'000);
  EXPECT_EQ(parse_duration("0").value(), 0);
}

TEST(Units, ParseDurationRefuses) {
  for (const char* text : {"", " ", "h", "3x", "-1s", "1m2h", "1s1s", "3h50", "1.2.3s", "1e3s", ".", "3 h",
                           "s3", "nan", "99999999999999999999d"}) {
    const auto parsed = parse_duration(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error().code, ExitCode::config);
    EXPECT_THAT(parsed.error().message, testing::HasSubstr("3h50m"));
  }
}

TEST(Units, SecondsHaveThreeDigitsOrMore) {
  EXPECT_EQ(format_seconds(0.016512), "0.0165 s");
  EXPECT_EQ(format_seconds(33), "33 s");
  EXPECT_EQ(format_seconds(999.4), "999 s");
  EXPECT_EQ(format_seconds(999.6), "1000 s");
  EXPECT_EQ(format_seconds(1260.4), "1260 s");
}

TEST(Units, DurationsReadBack) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(13'800'000), "3h50m");
  EXPECT_EQ(format_duration(90'250), "1m30s250ms");
  EXPECT_EQ(format_duration(-500), "-500ms");
  EXPECT_EQ(format_duration(std::numeric_limits<std::int64_t>::min()).front(), '-');
  for (std::int64_t value = 1; value < 1'000'000'000'000; value = value * 7 + 3) {
    EXPECT_EQ(parse_duration(format_duration(value)).value(), value);
  }
}

TEST(Units, FormatBytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::uint64_t{3} << 30), "3.00 GiB");
  EXPECT_EQ(format_bytes(~std::uint64_t{0}), "16.00 EiB");
}

}  // namespace
}  // namespace holdfast::test
