#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "parallel/group/quorum.h"

namespace holdfast::test {
namespace {

TEST(Quorum, FollowsFromWhoIsLeftAndWhoIsProvenDead) {
  struct Case {
    const char* what;
    QuorumFacts facts;
    bool on_resume;
  };
  const Case cases[] = {
      {"nobody is missing", {{0, 1, 2}, {0, 1, 2}, {}}, true},
      {"more than half", {{0, 1, 2}, {1, 2}, {}}, true},
      {"less than half", {{0, 1, 2, 3, 4}, {0, 1}, {}}, false},
      {"half with the lowest", {{0, 1, 2, 3}, {0, 3}, {}}, true},
      {"half without it", {{0, 1, 2, 3}, {1, 2}, {}}, false},
      {"one of two that is unreachable, the lowest", {{0, 1}, {0}, {}}, true},
      {"one of two that is unreachable", {{0, 1}, {1}, {}}, false},
      {"one of two whose other one is dead", {{0, 1}, {1}, {0}}, true},
      {"the last of four", {{0, 1, 2, 3}, {3}, {0, 1, 2}}, true},
      {"the dead do not count, those unreachable do", {{0, 1, 2, 3, 4}, {4}, {0, 1}}, false},
      {"half of those that count, with the lowest of these", {{0, 1, 2, 3}, {2}, {0, 1}}, true},
      {"who was dead and is back counts for neither", {{0, 1, 2}, {1}, {0, 1}}, false},
  };
  for (const Case& each : cases) EXPECT_EQ(has_quorum(each.facts), each.on_resume) << each.what;
}

// Two sides never both go on, whatever is unreachable.
TEST(Quorum, NeverGoesOnTwice) {
  constexpr unsigned ranks = 6;
  for (unsigned dead = 0; dead < 1U << ranks; ++dead) {
    for (unsigned side = 0; side < 1U << ranks; ++side) {
      if ((side & dead) != 0) continue;
      QuorumFacts one, other;
      for (unsigned rank = 0; rank < ranks; ++rank) {
        const int number = static_cast<int>(rank);
        for (QuorumFacts* facts : {&one, &other}) {
          facts->before.push_back(number);
          if ((dead >> rank & 1) != 0) facts->dead.push_back(number);
        }
        if ((dead >> rank & 1) == 0) ((side >> rank & 1) != 0 ? one : other).left.push_back(number);
      }
      if (one.left.empty() || other.left.empty()) continue;
      EXPECT_NE(has_quorum(one), has_quorum(other)) << "dead " << dead << ", side " << side;
    }
  }
}

// Says what each launched rank is in one enumeration: on one of two sides that do not hear each other, out of
// reach of both, or dead. Of the dead each side knows any part.
enum class Fate : std::uint8_t { one, other, elsewhere, dead, dead_for_one, dead_for_other, dead_for_both };
constexpr unsigned fates = 7;

// Two sides never both go on, whatever is unreachable and whoever has died, however little of the dead
// the one knows that the other knows.
TEST(Quorum, NeverGoesOnTwiceWithUnequalKnowledgeOfTheDead) {
  std::uint64_t pairs = 0, one_goes_on = 0;
  for (unsigned ranks = 2; ranks <= 6; ++ranks) {
    unsigned combinations = 1;
    for (unsigned rank = 0; rank < ranks; ++rank) combinations *= fates;
    for (unsigned number = 0; number < combinations; ++number) {
      QuorumFacts one, other;
      unsigned rest = number;
      for (int rank = 0; rank < static_cast<int>(ranks); ++rank, rest /= fates) {
        const Fate fate{static_cast<std::uint8_t>(rest % fates)};
        one.before.push_back(rank);
        other.before.push_back(rank);
        if (fate == Fate::one) one.left.push_back(rank);
        if (fate == Fate::other) other.left.push_back(rank);
        if (fate == Fate::dead_for_one || fate == Fate::dead_for_both) one.dead.push_back(rank);
        if (fate == Fate::dead_for_other || fate == Fate::dead_for_both) other.dead.push_back(rank);
      }
      if (one.left.empty() || other.left.empty()) continue;
      const bool first = has_quorum(one), second = has_quorum(other);
      ASSERT_FALSE(first && second) << ranks << " ranks, number " << number;
      ++pairs;
      one_goes_on += first || second ? 1 : 0;
    }
  }
  EXPECT_EQ(pairs, 44'814U);
  EXPECT_GT(one_goes_on, pairs / 8);
}

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

// One of those that give up ends with the code if all do, in whatever order they look.
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
