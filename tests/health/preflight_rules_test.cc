// Tests what measurements of hosts before a run mean.
#include "runtime/health/preflight_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "runtime/core/record.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t second_us = 1'000'000, asked_us = 1'790'000'000 * second_us;

// Returns a host that is fit.
TriedHost host(const std::string& name, double rate = 1000.0, const std::string& digest = "aaaaaaaaaa") {
  return {
      .name = name,
      .trials =
          HostTrials{
              .version = "0.1.0",
              .program = "p1",
              .test = "t1",
              .begun_us = asked_us + second_us / 2,
              .ended_us = asked_us + 10 * second_us,
              .devices = {{.device = "cpu",
                           .kind = "cpu",
                           .digest = digest,
                           .rounds = 10,
                           .tokens_per_s = rate,
                           .memory_bytes = 100}},
              .disk = {.directory = "/run", .write_MB_per_s = 500.0, .read_MB_per_s = 900.0, .sync_ms = 4.0}},
      .asked_us = asked_us,
      .answered_us = asked_us + 11 * second_us};
}

std::vector<std::vector<std::string>> rules_of(const std::vector<TriedHost>& hosts,
                                               const HostBook& book = {}) {
  std::vector<std::vector<std::string>> rules;
  for (const HostVerdict& verdict : judge_hosts(hosts, book, "0.1.0", "p1")) {
    rules.emplace_back();
    for (const PreflightReason& reason : verdict.reasons) rules.back().emplace_back(reason.rule);
  }
  return rules;
}

std::string sentence_of(const std::vector<TriedHost>& hosts, const HostBook& book = {},
                        std::size_t index = 0) {
  return judge_hosts(hosts, book, "0.1.0", "p1").at(index).reasons.at(0).sentence;
}

TEST(PreflightRules, AreAllDifferentAndSaySomething) {
  std::set<std::string_view> names;
  for (const PreflightRule& rule : preflight_rules()) {
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
    EXPECT_FALSE(rule.says.empty()) << rule.name;
    EXPECT_EQ(rule.bound == PreflightRule::Bound::none, rule.unit.empty()) << rule.name;
  }
}

TEST(PreflightRules, EqualHostsAreFit) {
  EXPECT_THAT(rules_of({host("a"), host("b", 900.0), host("c", 1100.0)}),
              ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_THAT(rules_of({host("a")}), ElementsAre(IsEmpty())) << "nobody is there to compare it with";
}

TEST(PreflightRules, AHostThatDoesNotAnswerIsNotFit) {
  const std::vector<TriedHost> hosts = {host("a"), {.name = "b", .silence = "it does not answer"}};
  EXPECT_THAT(rules_of(hosts), ElementsAre(IsEmpty(), ElementsAre("answers")));
  EXPECT_EQ(sentence_of(hosts, {}, 1), "it does not answer");
}

TEST(PreflightRules, TheMajorityHasTheRightBits) {
  const std::vector<TriedHost> hosts = {host("a"), host("b", 1000.0, "bbbbbbbbbb"), host("c")};
  EXPECT_THAT(rules_of(hosts), ElementsAre(IsEmpty(), ElementsAre("bits"), IsEmpty()));
  EXPECT_EQ(sentence_of(hosts, {}, 1),
            "its processors computed wrong numbers: bbbbbbbb, where 2 of 3 have aaaaaaaa");
}

TEST(PreflightRules, OfTwoNobodyKnowsWhoIsRight) {
  const std::vector<TriedHost> hosts = {host("a"), host("b", 1000.0, "bbbbbbbbbb")};
  EXPECT_THAT(rules_of(hosts), ElementsAre(ElementsAre("bits"), ElementsAre("bits")));
  EXPECT_THAT(sentence_of(hosts), HasSubstr("nobody knows who is right"));
}

TEST(PreflightRules, TheRecordHasAVote) {
  HostBook book;
  book.set_bits({.kind = "cpu", .test = "t1", .digest = "aaaaaaaaaa", .time_us = asked_us});
  EXPECT_THAT(rules_of({host("a"), host("b", 1000.0, "bbbbbbbbbb")}, book),
              ElementsAre(IsEmpty(), ElementsAre("bits")));
  EXPECT_THAT(rules_of({host("b", 1000.0, "bbbbbbbbbb")}, book), ElementsAre(ElementsAre("bits")));
  EXPECT_THAT(sentence_of({host("b", 1000.0, "bbbbbbbbbb")}, book),
              HasSubstr("other bits than were recorded on 2026-"));
  EXPECT_THAT(rules_of({host("b", 1000.0, "bbbbbbbbbb"), host("c", 1000.0, "bbbbbbbbbb")}, book),
              ElementsAre(IsEmpty(), IsEmpty()))
      << "two against a record of one";
  book.bits.front().test = "t2";
  EXPECT_THAT(rules_of({host("b", 1000.0, "bbbbbbbbbb")}, book), ElementsAre(IsEmpty())) << "another test";
}

TEST(PreflightRules, OtherKindsComputeOtherBitsAtOtherRates) {
  TriedHost other = host("b", 100.0, "bbbbbbbbbb");
  other.trials->devices[0].kind = "cuda";
  EXPECT_THAT(rules_of({host("a"), other}), ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(PreflightRules, ADeviceThatDiffersFromItselfHasNoVote) {
  TriedHost unsteady = host("b");
  unsteady.trials->devices[0].other_rounds = 1;
  EXPECT_THAT(rules_of({host("a"), unsteady}), ElementsAre(IsEmpty(), ElementsAre("bits-steady")));
  EXPECT_THAT(sentence_of({host("a"), unsteady}, {}, 1), HasSubstr("1 of 10 rounds"));
  unsteady.trials->devices[0].digest = "bbbbbbbbbb";
  EXPECT_THAT(rules_of({host("a"), unsteady}), ElementsAre(IsEmpty(), ElementsAre("bits-steady")));
}

TEST(PreflightRules, SlowerThanTheFleetIsNotFit) {
  EXPECT_THAT(rules_of({host("a"), host("b"), host("c", 1000.0 / 1.14)}),
              ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  const std::vector<TriedHost> hosts = {host("a"), host("b"), host("c", 500.0)};
  EXPECT_THAT(rules_of(hosts), ElementsAre(IsEmpty(), IsEmpty(), ElementsAre("slow-fleet")));
  EXPECT_EQ(sentence_of(hosts, {}, 2),
            "its processors: a step takes 2.00 times the fleet's median (500 tokens/s, and 1000); the bound "
            "is 1.15");
  EXPECT_THAT(rules_of({host("a"), host("b", 500.0)}), ElementsAre(IsEmpty(), ElementsAre("slow-fleet")))
      << "of two the slower one is named";
}

TEST(PreflightRules, SlowerThanUsualIsNotFit) {
  HostBook book;
  book.add_trial("a", {.time_us = 1, .device = "cpu", .kind = "cpu", .test = "t1", .tokens_per_s = 1000.0});
  EXPECT_THAT(rules_of({host("a", 801.0)}, book), ElementsAre(IsEmpty()));
  EXPECT_THAT(rules_of({host("a", 799.0)}, book), ElementsAre(ElementsAre("slow-usual")));
  EXPECT_EQ(sentence_of({host("a", 600.0)}, book),
            "its processors: 600 tokens/s are 60 % of its own usual 1000; the bound is 80 %");
  EXPECT_THAT(rules_of({host("b", 600.0)}, book), ElementsAre(IsEmpty())) << "another host";
}

TEST(PreflightRules, MemoryDiskProgramAndSensorsCount) {
  TriedHost sick = host("a");
  HostTrials& trials = *sick.trials;
  trials.program = "p2";
  trials.devices[0].wrong_bytes = 3;
  trials.disk = {.directory = "/run", .write_MB_per_s = 4.9, .read_MB_per_s = 1.0, .sync_ms = 3000.0};
  trials.findings = {"GPU 0 is slowed down"};
  EXPECT_THAT(rules_of({sick}),
              ElementsAre(ElementsAre("program", "memory", "disk-rate", "disk-read", "disk-sync", "health")));
  trials = *host("a").trials;
  trials.devices[0].trouble = "the GPU is lost";
  trials.disk = {.directory = "/run", .trouble = "no space left"};
  EXPECT_THAT(rules_of({sick}), ElementsAre(ElementsAre("device", "disk")));
}

TEST(PreflightRules, OnlyWhatIsProvenOfAClockCounts) {
  constexpr std::int64_t s = second_us;
  EXPECT_EQ(proven_clock_skew_us(0, 1 * s, 9 * s, 10 * s), 0) << "the login may have taken a second";
  EXPECT_EQ(proven_clock_skew_us(0, 4 * s, 12 * s, 10 * s), 2 * s);
  EXPECT_EQ(proven_clock_skew_us(0, -3 * s, 5 * s, 10 * s), -3 * s);
  TriedHost ahead = host("a"), behind = host("b");
  ahead.trials->begun_us += 5 * s;
  ahead.trials->ended_us += 5 * s;
  behind.trials->begun_us -= 5 * s;
  behind.trials->ended_us -= 5 * s;
  EXPECT_THAT(rules_of({ahead, behind, host("c")}),
              ElementsAre(ElementsAre("clock"), ElementsAre("clock"), IsEmpty()));
  EXPECT_THAT(sentence_of({ahead}), HasSubstr("ahead by at least 4"));
  EXPECT_THAT(sentence_of({behind}), HasSubstr("behind by at least 4"));
}

TEST(PreflightRules, OnlyFitHostsSayWhatIsUsual) {
  HostBook book;
  const std::vector<TriedHost> hosts = {host("a"), host("b"), host("c", 500.0)};
  note_verdicts(book, hosts, judge_hosts(hosts, book, "0.1.0", "p1"), {}, asked_us);
  EXPECT_EQ(book.usual_rate("a", "cpu", "cpu", "t1"), 1000.0);
  EXPECT_FALSE(book.usual_rate("c", "cpu", "cpu", "t1").has_value());
  EXPECT_EQ(book.find_bits("cpu", "t1")->digest, "aaaaaaaaaa");
  EXPECT_FALSE(book.find("c")->is_fit);
  EXPECT_THAT(book.find("c")->reasons, ElementsAre(HasSubstr("2.00 times")));
  note_verdicts(book, std::vector{host("c")}, judge_hosts(std::vector{host("c")}, book, "0.1.0", "p1"), {},
                asked_us + 1);
  EXPECT_TRUE(book.find("c")->is_fit);
  EXPECT_THAT(book.find("c")->reasons, IsEmpty());
  EXPECT_EQ(book.find("c")->checked_us, asked_us + 1);
}

// Returns the rules that find something in hosts a, b, ... with these links.
std::vector<std::vector<std::string>> rules_of_links(const std::vector<LinkTrial>& links, std::size_t count,
                                                     const HostBook& book = {}) {
  std::vector<HostVerdict> verdicts(count);
  for (std::size_t i = 0; i < count; ++i) verdicts[i].host = std::string(1, static_cast<char>('a' + i));
  judge_links(links, book, verdicts);
  std::vector<std::vector<std::string>> rules(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (const PreflightReason& reason : verdicts[i].reasons) rules[i].emplace_back(reason.rule);
  }
  return rules;
}

TEST(PreflightRules, AHostWithoutAFastLinkIsNotFit) {
  for (const std::size_t count : {3U, 4U, 5U}) {
    std::vector<LinkTrial> links;
    for (std::size_t from = 0; from < count; ++from) {
      for (std::size_t to = from + 1; to < count; ++to)
        links.push_back({.from = from, .to = to, .MB_per_s = from == 1 || to == 1 ? 40.0 : 100.0});
    }
    std::vector<std::vector<std::string>> expected(count);
    expected[1] = {"link-fleet"};
    EXPECT_EQ(rules_of_links(links, count), expected) << count;
  }
  const std::vector<LinkTrial> racks = {
      {.from = 0, .to = 1, .MB_per_s = 100.0}, {.from = 2, .to = 3, .MB_per_s = 100.0},
      {.from = 0, .to = 2, .MB_per_s = 10.0},  {.from = 0, .to = 3, .MB_per_s = 10.0},
      {.from = 1, .to = 2, .MB_per_s = 10.0},  {.from = 1, .to = 3, .MB_per_s = 10.0}};
  EXPECT_THAT(rules_of_links(racks, 4), testing::Each(IsEmpty())) << "two racks";
}

TEST(PreflightRules, ALinkIsComparedWithItself) {
  HostBook book;
  book.add_link("b", "a", 100.0);
  EXPECT_THAT(rules_of_links({{.from = 0, .to = 1, .MB_per_s = 81.0}}, 2, book), testing::Each(IsEmpty()));
  EXPECT_THAT(rules_of_links({{.from = 0, .to = 1, .MB_per_s = 79.0}}, 2, book),
              testing::Each(ElementsAre("link-usual")));
  EXPECT_THAT(rules_of_links({{.from = 0, .to = 1, .MB_per_s = 79.0}}, 2), testing::Each(IsEmpty()))
      << "never tried before";
}

TEST(PreflightRules, AHostIsToBlameForMostOfItsLinks) {
  HostBook book;
  std::vector<LinkTrial> links;
  for (const auto& [from, to] : std::vector<std::pair<std::size_t, std::size_t>>{{0, 1}, {0, 2}, {1, 2}}) {
    book.add_link(std::string(1, static_cast<char>('a' + from)), std::string(1, static_cast<char>('a' + to)),
                  100.0);
    links.push_back({.from = from, .to = to, .MB_per_s = from == 1 || to == 1 ? 70.0 : 100.0});
  }
  EXPECT_THAT(rules_of_links(links, 3, book),
              ElementsAre(IsEmpty(), ElementsAre("link-usual", "link-usual"), IsEmpty()));
  links[2].MB_per_s = 100.0;
  EXPECT_THAT(rules_of_links(links, 3, book),
              ElementsAre(ElementsAre("link-usual"), ElementsAre("link-usual"), IsEmpty()))
      << "of one link both ends";
}

TEST(PreflightRules, ALinkThatLosesIsFoundWithItsHost) {
  std::vector<LinkTrial> links;
  for (const auto& [from, to] : std::vector<std::pair<std::size_t, std::size_t>>{{0, 1}, {0, 2}, {1, 2}})
    links.push_back(
        {.from = from, .to = to, .MB_per_s = 100.0, .lost_share = from == 1 || to == 1 ? 0.02 : 0.0});
  EXPECT_THAT(rules_of_links(links, 3),
              ElementsAre(IsEmpty(), ElementsAre("link-loss", "link-loss"), IsEmpty()));
  links[0].lost_share = 0.009;
  links[2].lost_share.reset();
  EXPECT_THAT(rules_of_links(links, 3), testing::Each(IsEmpty())) << "below the bound, and not by TCP";
}

TEST(PreflightRules, OnlyLinksBetweenFitHostsSayWhatIsUsual) {
  HostBook book;
  const std::vector<TriedHost> hosts = {host("a"), host("b"), host("c", 500.0)};
  const std::vector<LinkTrial> links = {{.from = 0, .to = 1, .MB_per_s = 100.0},
                                        {.from = 0, .to = 2, .MB_per_s = 90.0}};
  note_verdicts(book, hosts, judge_hosts(hosts, book, "0.1.0", "p1"), links, asked_us);
  EXPECT_EQ(book.usual_link_rate("b", "a"), 100.0);
  EXPECT_FALSE(book.usual_link_rate("a", "c").has_value());
}

TEST(PreflightRules, WhatAHostTellsSurvivesTheLine) {
  const HostTrials told = *host("a").trials;
  const Result<HostTrials> heard = record_from_text<HostTrials>(record_to_text(told));
  ASSERT_TRUE(heard.ok());
  EXPECT_EQ(record_to_text(*heard), record_to_text(told));
}

}  // namespace
}  // namespace holdfast::test
