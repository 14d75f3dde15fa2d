// Tests that every rank gets the sums of all fields of a record, in the fields that they belong to.
#include "parallel/comm/rank_sum.h"

#include <gtest/gtest.h>

#include "parallel/local/local_communicator.h"
#include "runtime/os/env.h"

namespace holdfast::test {
namespace {

struct Inner {
  std::int64_t left = 0, right = 0;

  static constexpr void visit_words(auto& self, auto&& visit) {
    visit(self.left);
    visit(self.right);
  }
};

struct Outer {
  std::int64_t count = 0;
  Digest data = {};
  Inner inner = {};
  ExactSum loss = {};
  std::int64_t last = 0;

  static constexpr void visit_words(auto& self, auto&& visit) {
    visit(self.count);
    visit(self.data);
    visit(self.inner);
    visit(self.loss);
    visit(self.last);
  }
};

static_assert(count_words<Inner>() == 2);
static_assert(count_words<Outer>() == 1 + 2 + 2 + ExactSum::word_count + 1);

TEST(RankSum, GivesEveryRankTheSumOfEachField) {
  constexpr int ranks = 5;
  const Result<void> joined = run_local_ranks(ranks, [&](Communicator& communicator) -> Result<void> {
    const std::int64_t rank = communicator.rank();
    Outer record{.count = 1,
                 .data = {.high = ~std::uint64_t{0}, .low = static_cast<std::uint64_t>(rank)},
                 .inner = {.left = rank, .right = -rank},
                 .last = 100 + rank};
    record.loss.add(0.1);
    record.loss.add(1e-300);
    record.loss.normalise();
    HF_TRY_VOID(sum_over_ranks(communicator, Waiter(posix_env(), 10'000), record));
    EXPECT_EQ(record.count, 5);
    EXPECT_EQ(record.data, (Digest{.high = ~std::uint64_t{0} - 4, .low = 10}));
    EXPECT_EQ(record.inner.left, 10);
    EXPECT_EQ(record.inner.right, -10);
    EXPECT_EQ(record.last, 510);
    ExactSum expected;
    for (int i = 0; i < ranks; ++i) {
      expected.add(0.1);
      expected.add(1e-300);
    }
    EXPECT_EQ(record.loss.value(), expected.value());
    return {};
  });
  EXPECT_TRUE(joined.ok());
}

}  // namespace
}  // namespace holdfast::test
