#include "parallel/quorum.h"

#include <gtest/gtest.h>

namespace holdfast {
namespace {

TEST(Quorum, FollowsFromWhoIsLeftAndWhoIsProvenDead) {
  struct Case {
    const char* what;
    QuorumFacts facts;
    bool goes_on;
  };
  const Case cases[] = {
      {"nobody is missing", {{0, 1, 2}, {0, 1, 2}, {}}, true},
      {"more than half", {{0, 1, 2}, {1, 2}, {}}, true},
      {"less than half", {{0, 1, 2, 3, 4}, {0, 1}, {}}, false},
      {"half with the lowest", {{0, 1, 2, 3}, {0, 3}, {}}, true},
      {"half without it", {{0, 1, 2, 3}, {1, 2}, {}}, false},
      {"one of two that is out of reach, the lowest", {{0, 1}, {0}, {}}, true},
      {"one of two that is out of reach", {{0, 1}, {1}, {}}, false},
      {"one of two whose other one is dead", {{0, 1}, {1}, {0}}, true},
      {"the last of four", {{0, 1, 2, 3}, {3}, {0, 1, 2}}, true},
      {"the dead do not count, those out of reach do", {{0, 1, 2, 3, 4}, {4}, {0, 1}}, false},
      {"half of those that count, with the lowest of these", {{0, 1, 2, 3}, {2}, {0, 1}}, true},
      {"who was dead and is back counts for neither", {{0, 1, 2}, {1}, {0, 1}}, false},
  };
  for (const Case& each : cases) EXPECT_EQ(has_quorum(each.facts), each.goes_on) << each.what;
}

// Whatever is out of reach, never do two sides both go on.
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

}  // namespace
}  // namespace holdfast
