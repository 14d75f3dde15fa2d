#include "parallel/group/leaving.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

namespace holdfast::test {
namespace {

TEST(Leaving, FollowsFromWhoIsLeft) {
  using enum LeavingStep;
  struct Case {
    const char* what;
    LeavingFacts facts;
    LeavingStep step;
  };
  const Case cases[] = {
      {"the last one", {.rank = 2}, exit_with_code},
      {"the lowest", {.rank = 0, .others = {1, 2}}, look_again},
      {"the lowest, and others stay", {.rank = 0, .others = {1, 2}, .looked_long = true}, die},
      {"another one", {.rank = 1, .others = {0, 2}}, die},
      {"the lowest that is left", {.rank = 1, .others = {2}}, look_again},
      {"one hangs, and nobody ends it", {.rank = 2, .others = {1}, .nobody_ends_them = true}, look_again},
      {"it goes on to hang",
       {.rank = 2, .others = {1}, .looked_long = true, .nobody_ends_them = true},
       end_others},
  };
  for (const Case& each : cases) EXPECT_EQ(leaving_step(each.facts), each.step) << each.what;
}

// Where all give up, one of them ends with the code, in whatever order they look.
TEST(Leaving, OneOfAllThatLeaveEndsWithTheCode) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    std::set<int> left = {0, 1, 2, 3};
    int with_code = 0;
    for (int round = 0; round < 2; ++round) {
      for (const int rank : order) {
        if (!left.contains(rank)) continue;
        LeavingFacts facts{.rank = rank};
        std::ranges::remove_copy(left, std::back_inserter(facts.others), rank);
        const LeavingStep step = leaving_step(facts);
        if (step != LeavingStep::look_again) left.erase(rank);
        if (step == LeavingStep::exit_with_code) ++with_code;
      }
    }
    EXPECT_EQ(with_code, 1);
    EXPECT_TRUE(left.empty());
  } while (std::ranges::next_permutation(order).found);
}

}  // namespace
}  // namespace holdfast::test
