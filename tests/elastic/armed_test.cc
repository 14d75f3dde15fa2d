// What of a run's fault tolerance is on, by its config and what its start has found out.
#include "runtime/elastic/armed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

// Four ranks on two hosts under a launcher, with all that a default config asks for.
ArmedFacts usual() {
  return {.ranks = 4,
          .copies = 4,
          .hosts = 2,
          .has_membership = true,
          .has_launcher = true,
          .is_watched = true,
          .measures_ranks = true,
          .has_buddies = true,
          .replicas_cross_hosts = true,
          .tiers = SnapshotTiers::all,
          .audit_every_steps = 8};
}

Config config_of_steps() {
  Config config;
  config.training.steps = 1000;
  return config;
}

Protection find(const Config& config, const ArmedFacts& facts, const std::string& name) {
  for (const Protection& each : protections_of(config, facts))
    if (each.name == name) return each;
  ADD_FAILURE() << name;
  return {};
}

TEST(Armed, TheDefaultConfig) {
  const std::vector<Protection> all = protections_of(config_of_steps(), usual());
  EXPECT_THAT(protections_by_name(all, false), SizeIs(4)) << armed_line(all, false);
  const std::string off = armed_line(all, false);
  for (const char* name : {"uploads", "spares (elastic.spares = 0)", "drain notices", "notify"})
    EXPECT_THAT(off, HasSubstr(name));
  EXPECT_THAT(armed_line(all, true), HasSubstr("watchdog (5s to 10m)"));
  EXPECT_THAT(armed_line(all, true), HasSubstr("audits (every 8 steps)"));
  EXPECT_THAT(armed_line(all, true), HasSubstr("shrink (1 to 4 copies)"));
  EXPECT_EQ(all.size(), protections_by_name(all, true).size() + 4);
}

// What a loss takes away is said, and what growth brings back; what stays is not said again.
TEST(Armed, TellsWhatHasChanged) {
  Config config = config_of_steps();
  config.elastic.spares = 1;
  ArmedFacts facts = usual();
  facts.copies = facts.ranks = 2;
  facts.spares = 1;
  const std::vector<Protection> whole = protections_of(config, facts);
  facts.copies = facts.ranks = 1;
  facts.spares = 0;
  const std::vector<Protection> alone = protections_of(config, facts);
  EXPECT_THAT(armed_news(whole, whole), SizeIs(0));
  EXPECT_THAT(armed_news({}, alone), SizeIs(0)) << "a rank that has joined knows of nothing before";
  const std::vector<std::string> lost = armed_news(whole, alone), back = armed_news(alone, whole);
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_THAT(lost[0], testing::StartsWith("no longer armed: "));
  for (const char* each : {"recovery in place (one rank)", "shrink (1 of 1 copies are the fewest)",
                           "spares (none is left of elastic.spares = 1)"})
    EXPECT_THAT(lost[0], HasSubstr(each));
  EXPECT_THAT(lost[0], testing::Not(HasSubstr("watchdog")));
  ASSERT_THAT(back, SizeIs(1));
  EXPECT_THAT(back[0], testing::StartsWith("armed again: "));
  EXPECT_THAT(back[0], HasSubstr("spares (1)"));
}

TEST(Armed, SaysWhySomethingIsOff) {
  const auto why = [](const std::string& name, auto change) {
    Config config = config_of_steps();
    ArmedFacts facts = usual();
    change(config, facts);
    const Protection found = find(config, facts, name);
    EXPECT_FALSE(found.is_on) << name;
    return found.words;
  };
  EXPECT_EQ(why("snapshots", [](Config& config, ArmedFacts&) { config.checkpoint.ram_every_steps = 0; }),
            "checkpoint.ram_every_steps = 0");
  EXPECT_EQ(why("replicas", [](Config& config, ArmedFacts&) { config.checkpoint.ram_every_steps = 0; }),
            "no snapshots");
  EXPECT_THAT(why("snapshots",
                  [](Config&, ArmedFacts& facts) {
                    facts.tiers = SnapshotTiers::none;
                    facts.lacks_memory = "/dev/shm is full";
                  }),
              HasSubstr("/dev/shm is full"));
  EXPECT_THAT(why("replicas",
                  [](Config&, ArmedFacts& facts) {
                    facts.has_buddies = false;
                    facts.hosts = 1;
                  }),
              HasSubstr("one host"));
  EXPECT_THAT(why("replicas", [](Config&, ArmedFacts& facts) { facts.has_buddies = false; }),
              HasSubstr("no other host has the same part"));
  EXPECT_EQ(why("replicas", [](Config&, ArmedFacts& facts) { facts.copies = 1; }), "one copy of the model");
  EXPECT_EQ(why("recovery in place", [](Config& config, ArmedFacts&) { config.elastic.in_place = false; }),
            "elastic.in_place = false");
  EXPECT_THAT(why("recovery in place", [](Config&, ArmedFacts& facts) { facts.has_membership = false; }),
              HasSubstr("ULFM"));
  EXPECT_THAT(why("recovery in place", [](Config&, ArmedFacts& facts) { facts.copies = 1; }),
              HasSubstr("one copy of the model"));
  EXPECT_THAT(
      why("recovery in place", [](Config& config, ArmedFacts&) { config.elastic.min_data_parallel = 4; }),
      HasSubstr("elastic.min_data_parallel = 4 of 4"));
  EXPECT_THAT(why("growth", [](Config&, ArmedFacts& facts) { facts.has_launcher = false; }),
              HasSubstr("several hosts"));
  EXPECT_EQ(why("watchdog", [](Config& config, ArmedFacts&) { config.watchdog.guard = false; }),
            "watchdog.guard = false");
  EXPECT_THAT(why("health", [](Config&, ArmedFacts& facts) { facts.is_watched = false; }),
              HasSubstr("no watchdog"));
  EXPECT_EQ(why("audits", [](Config&, ArmedFacts& facts) { facts.audit_every_steps = 0; }),
            "verdict.audit_every_steps = 0");
  EXPECT_EQ(why("stragglers", [](Config&, ArmedFacts& facts) { facts.ranks = 1; }), "one rank");
  EXPECT_THAT(why("checkpoints", [](Config& config, ArmedFacts&) { config.checkpoint.every_steps = 0; }),
              HasSubstr("at the end alone"));
}

TEST(Armed, ASpareIsEnoughToGoOnInPlace) {
  ArmedFacts facts = usual();
  facts.copies = 1;
  facts.spares = 1;
  EXPECT_TRUE(find(config_of_steps(), facts, "recovery in place").is_on);
  EXPECT_EQ(find(config_of_steps(), facts, "spares").words, "1");
}

}  // namespace
}  // namespace holdfast::test
