// Runs that lost ranks and get new ones.
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "runtime/core/json.h"
#include "tests/elastic/recovery_fixture.h"
#include "watchdog/growing_pauses.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

class GrowthTest : public RecoveryTest {
 protected:
  // Makes every step a boundary to grow at, also while ranks still make slots: that may outlast such a short
  // run.
  static std::vector<std::string> at_once(std::vector<std::string> more) {
    more.insert(more.end(), {"elastic.grow_after=0s", "elastic.memory_timeout=0s"});
    return more;
  }
};

struct Grown {
  const char* what;
  int ranks;
  int deaths;
  int newcomers;
  int growths;
  std::vector<std::string> overrides;
  const char* faults;
};

TEST_F(GrowthTest, TheBitsAreThoseOfTheUndisturbedRun) {
  const std::string end = reference();
  const std::string ram = "checkpoint.ram_every_steps=1", seldom = "checkpoint.ram_every_steps=100";
  const std::string pipeline = "parallel.pipeline=2";
  const Grown cases[] = {
      {"three of four, and four again", 4, 1, 1, 1, {ram}, "step.before_vote@5:2=kill"},
      {"the leader", 3, 1, 1, 1, {ram}, "step.before_vote@5:0=kill"},
      {"from the disk", 2, 1, 1, 1, {}, "step.before_vote@5:1=kill"},
      {"snapshots are rare", 2, 1, 1, 1, {seldom}, "step.before_vote@5:1=kill"},
      {"half a copy", 4, 1, 1, 1, {ram, pipeline}, "step.before_vote@5:3=kill"},
      {"a whole copy", 4, 2, 2, 1, {ram, pipeline}, "step.begin@5:2=kill,step.begin@5:3=kill"},
      {"a spare", 3, 1, 1, 1, {ram, "elastic.spares=1"}, "step.before_vote@5:1=kill"},
      {"twice", 3, 2, 2, 2, {ram}, "step.begin@5:1=kill,step.begin@11:2=kill"},
      {"a new one dies", 3, 2, 2, 2, {ram}, "step.begin@5:1=kill,step.begin@3:3=kill"},
      {"as they begin to grow", 4, 2, 2, 1, {ram}, "step.begin@5:3=kill,grow.begin:1=kill"},
      {"when the new one is there", 4, 2, 2, 1, {ram}, "step.begin@5:3=kill,grow.after_spawn:1=kill"},
      {"before they load", 4, 2, 2, 1, {ram}, "step.begin@5:3=kill,grow.before_load:0=kill"},
  };
  int number = 0;
  for (const Grown& each : cases) {
    SCOPED_TRACE(each.what);
    const std::string run = fmt::format("grown-{}", ++number);
    EXPECT_EQ(
        survive(
            {.run = run, .ranks = each.ranks, .overrides = at_once(each.overrides), .faults = each.faults},
            {.newcomers = each.newcomers}),
        each.deaths);
    EXPECT_EQ(digest(run), end);
    EXPECT_EQ(events(run, "start").size(), 1U);
    int growths = 0;
    for (const Json& event : events(run, "recovery")) {
      if (event["reason"] != "growth") continue;
      ++growths;
      EXPECT_LT(event["ranks_before"], event["ranks_after"]);
      EXPECT_EQ(event["lost_steps"], 0);
    }
    EXPECT_GE(growths, each.growths);
  }
}

TEST_F(GrowthTest, GoesOnWhereNoneCanBeStarted) {
  const std::string end = reference();
  EXPECT_EQ(survive({.run = "alone",
                     .ranks = 3,
                     .overrides = {"checkpoint.ram_every_steps=1", "elastic.grow_after=50ms"},
                     .faults = "step.begin@5:1=kill"}),
            1);
  EXPECT_EQ(digest("alone"), end);
}

// It is another run that it would have them make.
TEST_F(GrowthTest, GoesOnWithoutANewRankThatDiffers) {
  const std::string end = reference();
  EXPECT_EQ(survive({.run = "differs",
                     .ranks = 2,
                     .overrides = at_once({"checkpoint.ram_every_steps=1"}),
                     .faults = "step.begin@5:1=kill"},
                    {.newcomers = 1, .newcomers_change = "run.seed=99"}),
            2);
  EXPECT_EQ(digest("differs"), end);
}

// Each rank from `first` on that joins dies in its second step.
std::string kill_joiners(int first, int count) {
  std::vector<std::string> faults;
  for (int rank = first; rank < first + count; ++rank)
    faults.push_back(fmt::format("step.begin@2:{}=kill", rank));
  return fmt::format("{}", fmt::join(faults, ","));
}

TEST_F(GrowthTest, APlaceWhoseRanksDieEachTimeIsLeftAlone) {
  constexpr int newcomers = 12;
  EXPECT_EQ(survive({.run = "flaps",
                     .ranks = 3,
                     .overrides = at_once({"checkpoint.ram_every_steps=1", "training.steps=60"}),
                     .faults = "step.begin@5:2=kill," + kill_joiners(3, newcomers)},
                    {.newcomers = newcomers}),
            1 + GrowingPauses::max_failures);
  const std::vector<Json> excluded = events("flaps", "exclude");
  ASSERT_EQ(excluded.size(), 1U);
  EXPECT_EQ(excluded[0]["place"], "place 2");
  EXPECT_THAT(std::string(excluded[0]["reason"]),
              HasSubstr("6 ranks in a row died soon after they had joined"));
}

// The memory of what has died is no rank's own: rank 0 leads until the third growth.
TEST_F(GrowthTest, TheDeathOfTheLeaderDoesNotForgetTheOthers) {
  constexpr int newcomers = 24;
  const int deaths = survive({.run = "forgets",
                              .ranks = 4,
                              .overrides = at_once({"checkpoint.ram_every_steps=1", "training.steps=90"}),
                              .faults = "step.begin@5:2=kill,step.begin@12:0=kill,step.begin@18:1=kill," +
                                        kill_joiners(4, newcomers)},
                             {.newcomers = newcomers});
  EXPECT_EQ(deaths, 3 + 3 * GrowingPauses::max_failures);
}

TEST_F(GrowthTest, ThePauseBeforeAPlaceIsUsedAgainGrows) {
  constexpr int newcomers = 30;
  const auto slow_down = [](int, int) { posix_env().sleep_us(5'000); };
  survive({.run = "pauses",
           .ranks = 2,
           .overrides = {"checkpoint.ram_every_steps=1", "training.steps=120", "elastic.memory_timeout=0s",
                         "elastic.grow_after=20ms"},
           .faults = "step.begin@5:1=kill," + kill_joiners(2, newcomers)},
          {.before_step = slow_down, .newcomers = newcomers});
  std::int64_t lost_us = 0, pause_us = 20'000;
  for (const Json& event : events("pauses", "recovery")) {
    const std::int64_t time_us = event["time_us"];
    if (event["reason"] == "growth") {
      EXPECT_GE(time_us - lost_us, pause_us) << event.dump();
      pause_us *= 2;
    } else {
      lost_us = time_us - static_cast<std::int64_t>(1e3 * double{event["duration_ms"]});
    }
  }
  EXPECT_GE(pause_us, 80'000) << "it did grow again";
}

TEST_F(GrowthTest, IsSwitchedOff) {
  const std::string end = reference();
  EXPECT_EQ(survive({.run = "off",
                     .ranks = 2,
                     .overrides = at_once({"checkpoint.ram_every_steps=1", "elastic.grow=off"}),
                     .faults = "step.begin@5:1=kill"},
                    {.newcomers = 1}),
            1);
  EXPECT_EQ(events("off", "recovery").size(), 1U);
  EXPECT_EQ(digest("off"), end);
}

}  // namespace
}  // namespace holdfast::test
