#include "runtime/run/trace_file.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "parallel/local/local_communicator.h"
#include "tests/support/faulty_env.h"

namespace holdfast::test {
namespace {

// Five ranks on three hosts, whose clocks are hours apart.
TEST(ClockOffset, IsHowFarTheHostsAreApart) {
  constexpr std::int64_t hour_ns = 3'600'000'000'000;
  struct Host {
    const char* name;
    std::int64_t shift_ns;
  };
  constexpr std::array<Host, 3> hosts = {{{"a", 0}, {"b", 2 * hour_ns}, {"c", -hour_ns}}};
  constexpr std::array<std::size_t, 5> host_of_rank = {0, 1, 0, 2, 1};
  std::array<ClockOffset, 5> offsets;
  const Result<void> joined = run_local_ranks(5, [&](Communicator& communicator) -> Result<void> {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const Host& host = hosts[host_of_rank[rank]];
    FaultyEnv env(posix_env());
    env.clock_shift_ns = host.shift_ns;
    HF_TRY(offsets[rank], find_clock_offset(communicator, {env, 60'000}, host.name));
    return {};
  });
  ASSERT_TRUE(joined.ok()) << joined.error().message;
  for (std::size_t rank = 0; rank < offsets.size(); ++rank) {
    const Host& host = hosts[host_of_rank[rank]];
    const std::int64_t wrong_ns = offsets[rank].offset_ns + host.shift_ns;
    EXPECT_LE(std::abs(wrong_ns), offsets[rank].error_ns) << "rank " << rank;
    EXPECT_LT(offsets[rank].error_ns, hour_ns / 60) << "little beside how far they are apart";
    EXPECT_EQ(offsets[rank].error_ns > 0, host_of_rank[rank] != 0) << "exact on the host of rank 0";
  }
  EXPECT_EQ(offsets[1].offset_ns, offsets[4].offset_ns) << "ranks of one host have one clock";
}

}  // namespace
}  // namespace holdfast::test
