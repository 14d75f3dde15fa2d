// Tests that every rank gets the records of all, and the same error where one cannot be read.
#include "parallel/comm/gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/local/local_communicator.h"
#include "runtime/os/env.h"

namespace holdfast::test {
namespace {

struct Note {
  int rank = 0;
  std::vector<std::string> words = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("rank", self.rank);
    visit("words", self.words);
  }
  bool operator==(const Note&) const = default;
};

TEST(Gather, GivesEveryRankTheRecordsOfAll) {
  constexpr int ranks = 5;
  std::vector<Note> expected;
  for (int rank = 0; rank < ranks; ++rank)
    expected.push_back(
        {.rank = rank, .words = std::vector<std::string>(static_cast<std::size_t>(rank), "w\n ")});
  const Result<void> joined = run_local_ranks(ranks, [&](Communicator& communicator) -> Result<void> {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    HF_TRY(const std::vector<Note> all, gather(communicator, {posix_env(), 60'000}, expected[rank]));
    EXPECT_EQ(all, expected);
    return {};
  });
  ASSERT_TRUE(joined.ok()) << joined.error().message;
}

TEST(GatherOnFirst, GivesRankZeroTheBytesOfAll) {
  for (const int ranks : {1, 2, 5, 8}) {
    const Result<void> joined = run_local_ranks(ranks, [&](Communicator& communicator) -> Result<void> {
      const std::array<int, 2> mine = {communicator.rank(), 10 * communicator.rank()};
      std::vector<int> all(2 * static_cast<std::size_t>(ranks), -1);
      HF_TRY_VOID(gather_on_first(communicator, {posix_env(), 60'000}, std::as_bytes(std::span(mine)),
                                  std::as_writable_bytes(std::span(all))));
      for (int rank = 0; communicator.rank() == 0 && rank < ranks; ++rank) {
        EXPECT_EQ(all[2 * static_cast<std::size_t>(rank)], rank);
        EXPECT_EQ(all[2 * static_cast<std::size_t>(rank) + 1], 10 * rank);
      }
      return barrier(communicator, {posix_env(), 60'000});
    });
    ASSERT_TRUE(joined.ok()) << joined.error().message;
  }
}

TEST(Gather, ARecordThatCannotBeReadIsAnErrorOnAllRanks) {
  const Result<void> joined = run_local_ranks(3, [&](Communicator& communicator) -> Result<void> {
    const Waiter waiter(posix_env(), 60'000);
    if (communicator.rank() == 1) {
      HF_TRY_VOID(outcome_of(all_gather_text(communicator, waiter, R"({"rank":"one"})")));
    } else {
      const Result<std::vector<Note>> all = gather(communicator, waiter, Note{});
      EXPECT_FALSE(all.ok());
      if (!all.ok()) {
        EXPECT_EQ(all.error().code, ExitCode::communication);
        EXPECT_THAT(all.error().message,
                    testing::StartsWith("the record that rank 1 sent cannot be read: its field rank "));
      }
    }
    return barrier(communicator, waiter);
  });
  ASSERT_TRUE(joined.ok()) << joined.error().message;
}

}  // namespace
}  // namespace holdfast::test
