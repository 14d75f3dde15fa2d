#include "tools/chaos/chaos_record.h"

#include <gtest/gtest.h>

#include <vector>

namespace holdfast::test {
namespace {

const std::vector<LaunchHost> hosts_ab = {{.name = "a", .slots = 2}, {.name = "b", .slots = 2}};
constexpr ChaosLayout four_copies = {.ranks = 4};

struct LeftOutCase {
  const char* name;
  ChaosLayout layout;
  std::vector<LaunchHost> hosts;
  std::vector<ChaosInjected> injected;
  std::vector<HostRanks> starts;
  const char* expected;
};

const std::vector<LeftOutCase>& left_out_cases() {
  const ChaosInjected of_b{.fault = ChaosFault::lost_host, .host = "b"};
  const ChaosInjected of_pair{.fault = ChaosFault::cut_pair, .host = "b", .peer = "a"};
  const ChaosInjected of_rank{.fault = ChaosFault::kill, .rank = 1};
  const HostRanks both = {{"a", 2}, {"b", 2}}, only_a = {{"a", 2}}, only_b = {{"b", 2}};
  constexpr const char* b_is_missing = "start 2 of 2 had no rank on host b, to which nothing had happened";
  constexpr const char* a_is_missing = "start 2 of 2 had no rank on host a, to which nothing had happened";
  static const std::vector<LeftOutCase> cases = {
      {"all used", four_copies, hosts_ab, {}, {both, both}, ""},
      {"nothing said", four_copies, hosts_ab, {}, {}, ""},
      {"for no reason", four_copies, hosts_ab, {}, {both, only_a}, b_is_missing},
      {"from the beginning",
       four_copies,
       hosts_ab,
       {},
       {only_a},
       "start 1 of 1 had no rank on host b, to which nothing had happened"},
      {"no rank", four_copies, hosts_ab, {}, {both, {{"a", 4}, {"b", 0}}}, b_is_missing},
      {"the one with the fault", four_copies, hosts_ab, {of_b}, {both, only_a, both}, ""},
      {"another one", four_copies, hosts_ab, {of_b}, {both, only_b}, a_is_missing},
      {"the other one of a pair", four_copies, hosts_ab, {of_pair}, {both, only_b}, ""},
      {"its ranks were killed", four_copies, hosts_ab, {of_rank}, {both, only_b}, ""},
      {"ranks were killed elsewhere", four_copies, hosts_ab, {of_rank}, {both, only_a}, b_is_missing},
      {"fewer on it", four_copies, hosts_ab, {}, {both, {{"a", 2}, {"b", 1}}}, ""},
      {"a new name", four_copies, hosts_ab, {of_b}, {both, {{"a", 2}, {"c", 2}}}, ""},
      {"room to spare", {.ranks = 3}, hosts_ab, {}, {both, only_a}, ""},
      {"slots unknown", four_copies, {{.name = "a"}, {.name = "b"}}, {}, {both, only_a}, ""},
      {"copies of two ranks", {.ranks = 4, .pipeline = 2}, hosts_ab, {}, {both, only_a}, ""},
      {"slices", {.ranks = 4, .tensor = 2}, hosts_ab, {}, {both, only_a}, ""},
      {"a spare", {.ranks = 4, .spares = 1}, hosts_ab, {}, {both, only_a}, ""},
      {"other names", four_copies, hosts_ab, {}, {{{"a.example.org", 2}, {"b.example.org", 2}}}, ""},
  };
  return cases;
}

TEST(HostLeftOut, OnlyOneToWhichNothingHasHappened) {
  for (const LeftOutCase& each : left_out_cases()) {
    ChaosRun run;
    run.plan.layout = each.layout;
    run.injected = each.injected;
    run.starts = each.starts;
    EXPECT_EQ(host_left_out(run, each.hosts, "a"), each.expected) << each.name;
  }
}

TEST(HostLeftOut, StartsSayWhereTheirRanksAre) {
  const auto ranks = [](const char* line) { return ranks_of_start(Json::parse(line)); };
  EXPECT_EQ(ranks(R"({"event":"start","hosts":{"a":2,"b":1}})"), (HostRanks{{"a", 2}, {"b", 1}}));
  EXPECT_EQ(ranks(R"({"event":"recovery","hosts":{"a":2}})"), std::nullopt);
  EXPECT_EQ(ranks(R"({"event":"start"})"), std::nullopt) << "a run on one host, or an older program";
  EXPECT_EQ(ranks(R"({"event":"start","hosts":["a"]})"), std::nullopt);
}

}  // namespace
}  // namespace holdfast::test
