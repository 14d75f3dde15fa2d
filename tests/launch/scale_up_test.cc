// Tests when a run on several hosts that has fewer ranks than it could have is worth another start.
#include "runtime/launch/scale_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Ranks = std::map<std::string, int>;

constexpr std::int64_t s = 1'000'000'000;
const Ranks all = {{"a", 2}, {"b", 2}}, without_b = {{"a", 2}}, one_of_b = {{"a", 2}, {"b", 1}};

TEST(ScaleUp, IsDueSomeTimeAfterRanksWereLost) {
  ScaleUp scale_up(10'000);
  EXPECT_FALSE(scale_up.is_due(1'000 * s)) << "nobody trains";
  EXPECT_EQ(scale_up.ranks(), 0);
  scale_up.began(100 * s, all);
  EXPECT_EQ(scale_up.ranks(), 4);
  EXPECT_FALSE(scale_up.is_due(109 * s));
  EXPECT_THAT(scale_up.saw(109 * s, all), IsEmpty());
  EXPECT_TRUE(scale_up.is_due(110 * s)) << "hosts that were lost before may be back";
  EXPECT_THAT(scale_up.saw(111 * s, without_b), IsEmpty());
  EXPECT_EQ(scale_up.ranks(), 2);
  EXPECT_FALSE(scale_up.is_due(120 * s));
  EXPECT_TRUE(scale_up.is_due(121 * s));
}

TEST(ScaleUp, LooksLessAndLessOftenWhileNoMoreHostsAnswer) {
  ScaleUp scale_up(10'000);
  scale_up.began(0, without_b);
  std::int64_t now_ns = 0;
  std::vector<std::int64_t> pauses;
  for (int look = 0; look < 6; ++look) {
    const std::int64_t before_ns = now_ns;
    while (!scale_up.is_due(now_ns)) now_ns += s;
    pauses.push_back((now_ns - before_ns) / s);
    scale_up.postpone(now_ns);
  }
  EXPECT_THAT(pauses, ElementsAre(10, 10, 20, 40, 60, 60));
  EXPECT_THAT(scale_up.saw(now_ns, {{"a", 1}}), IsEmpty());
  EXPECT_TRUE(scale_up.is_due(now_ns + 10 * s)) << "each loss begins anew";
}

TEST(ScaleUp, TheWaitCountsFromTheFirstLossThatIsNotMadeGood) {
  constexpr std::int64_t hour = 3'600 * s;
  ScaleUp scale_up(8 * 3'600'000);
  Ranks ranks = {{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}};
  scale_up.began(0, ranks);
  ranks.erase("b");
  EXPECT_THAT(scale_up.saw(20 * hour, ranks), IsEmpty());
  EXPECT_FALSE(scale_up.is_due(28 * hour - 1)) << "the run was whole until then";
  ranks.erase("c");
  EXPECT_THAT(scale_up.saw(21 * hour, ranks), IsEmpty());
  EXPECT_FALSE(scale_up.is_due(28 * hour - 1));
  EXPECT_TRUE(scale_up.is_due(28 * hour));
  EXPECT_TRUE(scale_up.is_worth_a_start("b", 28 * hour));
  EXPECT_FALSE(scale_up.is_worth_a_start("c", 28 * hour)) << "each host for itself";
  EXPECT_TRUE(scale_up.is_worth_a_start("c", 29 * hour));
  ranks = {{"a", 2}};
  EXPECT_THAT(scale_up.saw(28 * hour - s, ranks), IsEmpty());
  EXPECT_FALSE(scale_up.is_due(28 * hour)) << "more may follow";
  EXPECT_TRUE(scale_up.is_due(28 * hour + 59 * s));
  EXPECT_THAT(scale_up.saw(29 * hour, {{"a", 8}}), IsEmpty());
  EXPECT_THAT(scale_up.saw(30 * hour, {{"a", 7}}), IsEmpty());
  EXPECT_FALSE(scale_up.is_due(38 * hour - 1)) << "it had got back what it had lost before";
  EXPECT_TRUE(scale_up.is_due(38 * hour));
}

TEST(ScaleUp, ALossThatSparesHaveMadeGoodBeginsNoWait) {
  ScaleUp scale_up(3'600'000);
  scale_up.set_whole({.computing = 4, .kept_spares = 2});
  Ranks ranks = {{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}, {"e", 2}};
  scale_up.began(0, ranks);
  std::int64_t now_ns = 0;
  for (const char* host : {"e", "d", "c"}) {
    ranks.erase(host);
    now_ns += 10'000 * s;
    EXPECT_THAT(scale_up.saw(now_ns, ranks), IsEmpty());
  }
  EXPECT_FALSE(scale_up.is_due(now_ns + 3'599 * s)) << "no spare is left since this loss alone";
  EXPECT_TRUE(scale_up.is_due(now_ns + 3'600 * s));
}

TEST(ScaleUp, SparesAloneAreWorthAStartOnlyWhereTheNextHostHasNone) {
  ScaleUp scale_up(10'000);
  scale_up.set_whole({.computing = 6, .kept_spares = 2});
  Ranks ranks = {{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}, {"e", 2}};
  scale_up.began(0, ranks);
  EXPECT_FALSE(scale_up.is_worth_more(10)) << "it has all";
  ranks.erase("e");
  scale_up.saw(100 * s, ranks, {}, {}, 2);
  EXPECT_FALSE(scale_up.is_worth_more(10)) << "two spares can take the place of a host";
  ranks.erase("d");
  scale_up.saw(200 * s, ranks, {}, {}, 0);
  EXPECT_TRUE(scale_up.is_worth_more(8)) << "the next host that is lost costs a copy";
  EXPECT_FALSE(scale_up.is_worth_more(6)) << "there is no room for more";
  ranks.erase("c");
  scale_up.saw(300 * s, ranks, {}, {}, 0);
  EXPECT_TRUE(scale_up.is_worth_more(6)) << "a copy is missing";
}

TEST(ScaleUp, FewerSparesThanAHostHasRanksAreAllWanted) {
  ScaleUp scale_up(10'000);
  scale_up.set_whole({.computing = 6, .kept_spares = 2});
  scale_up.began(0, {{"a", 4}, {"b", 4}});
  scale_up.saw(100 * s, {{"a", 4}, {"b", 3}});
  EXPECT_TRUE(scale_up.is_worth_more(8)) << "one of two is left";
}

TEST(ScaleUp, RanksThatWaitForTheRestOfTheirCopyDoNotCompute) {
  ScaleUp scale_up(10'000);
  scale_up.set_whole({.computing = 8, .kept_spares = 4});
  scale_up.began(0, {{"a", 6}, {"b", 6}});
  scale_up.saw(100 * s, {{"a", 6}, {"b", 5}}, {}, {},
               7);  // two copies of four; the groups are in one host each
  EXPECT_TRUE(scale_up.is_worth_more(12));
  EXPECT_FALSE(scale_up.is_due(109 * s));
  EXPECT_TRUE(scale_up.is_due(110 * s));
}

TEST(ScaleUp, WithoutAPauseItLooksEverySecond) {
  ScaleUp scale_up(0);
  scale_up.began(5 * s, without_b);
  EXPECT_TRUE(scale_up.is_due(5 * s));
  scale_up.postpone(5 * s);
  EXPECT_FALSE(scale_up.is_due(5 * s + s / 2));
  EXPECT_TRUE(scale_up.is_due(6 * s));
}

TEST(ScaleUp, CountsAHostThatAStartWasToGiveRanksAndBeganWithout) {
  ScaleUp scale_up(10'000);
  EXPECT_THAT(scale_up.began(0, without_b, all), IsEmpty()) << "it never had any";
  EXPECT_TRUE(scale_up.is_worth_a_start("b", 10 * s));
  scale_up.begins();
  EXPECT_THAT(scale_up.began(100 * s, without_b, all), ElementsAre("b"));
  EXPECT_FALSE(scale_up.is_worth_a_start("b", 3'699 * s));
  EXPECT_TRUE(scale_up.is_worth_a_start("b", 3'700 * s));
  EXPECT_THAT(scale_up.began(130 * s, without_b, without_b), IsEmpty()) << "it was not to have any";
}

// Loses ranks of b and gets them back, again and again; returns the time.
std::int64_t flap(ScaleUp& scale_up, std::int64_t now_ns, int times, std::int64_t lives_ns) {
  for (int time = 0; time < times; ++time) {
    scale_up.begins();
    scale_up.began(now_ns, all);
    now_ns += lives_ns;
    scale_up.saw(now_ns, one_of_b);
  }
  return now_ns;
}

TEST(ScaleUp, WaitsAnHourForAHostThatLosesWhatItGotBackAndThenTwo) {
  ScaleUp scale_up(10'000);
  std::int64_t now_ns = flap(scale_up, 0, 1, 5 * s);
  EXPECT_FALSE(scale_up.is_worth_a_start("b", now_ns + 9 * s));
  EXPECT_TRUE(scale_up.is_worth_a_start("b", now_ns + 10 * s))
      << "what it lost first it had from the beginning";
  now_ns = flap(scale_up, now_ns, 1, 5 * s);
  EXPECT_FALSE(scale_up.is_worth_a_start("b", now_ns + 3'599 * s));
  EXPECT_TRUE(scale_up.is_worth_a_start("b", now_ns + 3'600 * s));
  EXPECT_TRUE(scale_up.is_worth_a_start("a", now_ns + 10 * s));
  EXPECT_TRUE(scale_up.is_worth_a_start("new", now_ns));
  now_ns = flap(scale_up, now_ns, 1, 5 * s);
  EXPECT_FALSE(scale_up.is_worth_a_start("b", now_ns + 7'199 * s));
  EXPECT_TRUE(scale_up.is_worth_a_start("b", now_ns + 7'200 * s));
  EXPECT_FALSE(scale_up.pauses().is_condemned("b"));
}

TEST(ScaleUp, SaysWhichHostsMayHaveRanks) {
  ScaleUp scale_up(10'000);
  EXPECT_TRUE(scale_up.may_have_ranks("b", {"a", "b"})) << "nobody has told";
  scale_up.began(0, without_b);
  EXPECT_TRUE(scale_up.may_have_ranks("a", {"a", "b"}));
  EXPECT_FALSE(scale_up.may_have_ranks("b", {"a", "b"}));
  EXPECT_TRUE(scale_up.may_have_ranks("10.0.0.2", {"10.0.0.1", "10.0.0.2"})) << "a calls itself otherwise";
}

TEST(ScaleUp, LeavesAHostOutThatLosesThemEveryTime) {
  ScaleUp scale_up(10'000);
  std::int64_t now_ns = flap(scale_up, 0, GrowingPauses::max_failures, 5 * s);
  EXPECT_FALSE(scale_up.pauses().is_condemned("b"));
  scale_up.begins();
  scale_up.began(now_ns, all);
  EXPECT_THAT(scale_up.saw(now_ns + s, one_of_b), ElementsAre("b"));
  EXPECT_TRUE(scale_up.pauses().is_condemned("b"));
  EXPECT_FALSE(scale_up.is_worth_a_start("b", now_ns + 100'000 * s));
  EXPECT_THAT(scale_up.saw(now_ns + 2 * s, without_b), IsEmpty()) << "it is said once";
}

TEST(ScaleUp, AHostThatWasWellForLongIsLikeTheOthers) {
  ScaleUp scale_up(10'000);
  const std::int64_t long_ns = (GrowingPauses::default_settled_ms / 1'000 + 1) * s;
  const std::int64_t now_ns = flap(scale_up, 0, 3 * GrowingPauses::max_failures, long_ns);
  EXPECT_FALSE(scale_up.pauses().is_condemned("b"));
  EXPECT_TRUE(scale_up.is_worth_a_start("b", now_ns + 20 * s));
}

}  // namespace
}  // namespace holdfast::test
