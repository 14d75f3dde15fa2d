#include "tools/chaos/number_check.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/chaos/second.h"
#include "tools/chaos/chaos_record.h"
#include "tools/chaos/chaos_report.h"
#include "tools/chaos/chaos_summary.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ChaosInjected wrong_number(ChaosFault fault, std::uint64_t step, int rank) {
  return {.fault = fault,
          .time_us = static_cast<std::int64_t>(step) * second,
          .what = std::string(facts_of(fault).name),
          .rank = rank,
          .step = step};
}

VerdictEvent verdict_on(std::uint64_t step, std::optional<int> rank, const char* of = "grad_norm",
                        const char* action = "redo") {
  return {.time_us = static_cast<std::int64_t>(step) * second + second / 2,
          .step = step,
          .what = "corruption",
          .action = action,
          .of = of,
          .differing_ranks = 1,
          .rank = rank,
          .reason = "step: the bits differ"};
}

VerdictEvent spike_on(std::uint64_t step) {
  VerdictEvent verdict = verdict_on(step, {}, "loss");
  verdict.what = "spike";
  verdict.differing_ranks = 0;
  return verdict;
}

ChaosRun numbers_run(std::vector<ChaosInjected> injected, std::vector<VerdictEvent> verdicts,
                     bool same_bits = true) {
  ChaosRun run;
  run.plan.layout = {.ranks = 4};
  run.injected = std::move(injected);
  run.number_verdicts = std::move(verdicts);
  run.launches = {{.begun_us = 1, .ended_us = 100 * second}};
  run.same_bits = same_bits;
  return run;
}

CheckedNumber only(const ChaosRun& run) {
  return check_numbers(run).each.at(0).value();
}

TEST(NumberCheck, FoundHarmlessOrMissed) {
  const ChaosInjected flip = wrong_number(ChaosFault::flip_gradients, 12, 1);
  EXPECT_EQ(to_text(only(numbers_run({flip}, {verdict_on(12, 1)}))),
            "found in the same step (corruption, redo), right rank");
  EXPECT_EQ(to_text(only(numbers_run({flip}, {verdict_on(13, {})}))),
            "found 1 step later (corruption, redo), nobody named");
  EXPECT_EQ(to_text(only(numbers_run({flip}, {}))), "harmless");
  EXPECT_EQ(to_text(only(numbers_run({flip}, {}, /*same_bits=*/false))), "missed");
  EXPECT_FALSE(check_numbers(numbers_run({{.fault = ChaosFault::kill}}, {})).each.at(0).has_value());
}

TEST(NumberCheck, AVerdictThatNothingExplainsIsBaseless) {
  EXPECT_THAT(check_numbers(numbers_run({}, {spike_on(3)})).baseless,
              ElementsAre(HasSubstr("a verdict came of nothing")));
  const ChaosInjected flip = wrong_number(ChaosFault::flip_weights, 12, 1);
  EXPECT_THAT(check_numbers(numbers_run({flip}, {verdict_on(7, {})})).baseless,
              ElementsAre(HasSubstr("nothing")))
      << "it came before";
  const NumberCheck other = check_numbers(numbers_run({flip}, {verdict_on(12, 0, "state", "evict")}));
  EXPECT_THAT(other.baseless, ElementsAre(HasSubstr("names rank 0, whose numbers were right")));
  EXPECT_EQ(other.each[0]->named, NamedRank::other);
  // Nothing that follows from a known fault is baseless.
  EXPECT_THAT(
      check_numbers(numbers_run({flip}, {verdict_on(12, 1, "state"), verdict_on(12, 1), spike_on(20)}))
          .baseless,
      IsEmpty());
}

TEST(NumberCheck, EachVerdictHasTheFaultThatFitsIt) {
  // Two of one rank: what is found in the state is the second.
  ChaosRun run = numbers_run(
      {wrong_number(ChaosFault::flip_activations, 10, 1), wrong_number(ChaosFault::flip_moments, 11, 1)},
      {verdict_on(11, 1, "state", "evict")}, /*same_bits=*/false);
  EXPECT_EQ(check_numbers(run).each[0]->end, NumberEnd::missed);
  EXPECT_EQ(check_numbers(run).each[1]->end, NumberEnd::found);
  // A late verdict is about what lasts.
  run = numbers_run(
      {wrong_number(ChaosFault::wrong_product_always, 5, 1), wrong_number(ChaosFault::wrong_product, 10, 1)},
      {verdict_on(30, 1)}, /*same_bits=*/false);
  EXPECT_EQ(check_numbers(run).each[0]->latency_steps, 25U);
  EXPECT_EQ(check_numbers(run).each[1]->end, NumberEnd::missed);
  // An update is wrong by its rate.
  run = numbers_run(
      {wrong_number(ChaosFault::wrong_rate, 10, 1), wrong_number(ChaosFault::flip_activations, 10, 1)},
      {verdict_on(11, 1, "update", "evict")});
  EXPECT_EQ(check_numbers(run).each[0]->latency_steps, 1U);
  EXPECT_EQ(check_numbers(run).each[1]->end, NumberEnd::harmless);
  // The one of two ranks that is named counts.
  run = numbers_run(
      {wrong_number(ChaosFault::flip_weights, 10, 0), wrong_number(ChaosFault::flip_weights, 10, 2)},
      {verdict_on(10, 2, "state"), verdict_on(10, 0, "state")});
  EXPECT_EQ(check_numbers(run).each[0]->named, NamedRank::right);
  EXPECT_EQ(check_numbers(run).each[1]->named, NamedRank::right);
}

TEST(NumberCheck, ABadSampleIsNobodys) {
  const ChaosInjected sample = wrong_number(ChaosFault::bad_sample, 12, -1);
  VerdictEvent skipped = spike_on(12);
  skipped.what = "nonfinite";
  skipped.action = "skip";
  ChaosRun run = numbers_run({sample}, {skipped});
  EXPECT_EQ(to_text(only(run)), "found in the same step (nonfinite, skip)");
  run.injected.push_back(wrong_number(ChaosFault::flip_gradients, 12, 1));  // while the step was made again
  EXPECT_EQ(to_text(only(run)), "found in the same step (nonfinite, skip)");
  EXPECT_EQ(check_numbers(run).each[1]->end, NumberEnd::harmless);
  run.injected.pop_back();
  run.number_verdicts = {verdict_on(12, 1)};
  EXPECT_EQ(only(run).named, NamedRank::other);
  EXPECT_THAT(check_numbers(run).baseless, ElementsAre(HasSubstr("names rank 1")));
}

// Other bits are no failure where no check could have seen why, and one everywhere else.
TEST(NumberCheck, WhatExcusesOtherBits) {
  const auto excuse = [](ChaosFault fault, std::vector<VerdictEvent> verdicts) {
    return excuse_of(numbers_run({wrong_number(fault, 12, 1)}, std::move(verdicts), /*same_bits=*/false));
  };
  for (const ChaosFault fault :
       {ChaosFault::flip_parameters, ChaosFault::flip_gradients, ChaosFault::flip_activations,
        ChaosFault::wrong_product, ChaosFault::wrong_product_always}) {
    EXPECT_EQ(excuse(fault, {}), std::string(facts_of(fault).name) + ": missed");
    EXPECT_EQ(excuse(fault, {verdict_on(12, 1)}), "") << "what is found is healed";
    EXPECT_THAT(excuse(fault, {spike_on(13)}), HasSubstr("spike")) << "a spike is told, and heals nothing";
  }
  for (const ChaosFault fault : {ChaosFault::flip_weights, ChaosFault::flip_moments, ChaosFault::nan,
                                 ChaosFault::wrong_rate, ChaosFault::bad_sample, ChaosFault::kill})
    EXPECT_EQ(excuse(fault, {}), "");
}

TEST(NumberCheck, WhatIsWrongForGoodIsHealedOnceItIsFound) {
  const VerdictEvent evicted = verdict_on(20, 1, "grad_norm", "evict");
  const ChaosInjected lasting = wrong_number(ChaosFault::wrong_product_always, 12, 1);
  EXPECT_EQ(excuse_of(numbers_run({lasting}, {evicted}, /*same_bits=*/false)), "");
}

// Digests go from update to update: before the first one nothing covers the state. A rank that gets it from
// the owner is then the one whose parameters differ.
TEST(NumberCheck, WhatChangesBeforeTheFirstUpdateIsUnseen) {
  ChaosInjected flip = wrong_number(ChaosFault::flip_weights, 12, 1);
  const std::vector<VerdictEvent> verdicts = {verdict_on(12, 0)};
  EXPECT_EQ(check_numbers(numbers_run({flip}, verdicts, /*same_bits=*/false)).baseless.size(), 1U);
  flip.before_first_update = true;
  const ChaosRun run = numbers_run({flip}, verdicts, /*same_bits=*/false);
  EXPECT_THAT(check_numbers(run).baseless, IsEmpty());
  EXPECT_EQ(only(run).named, NamedRank::other) << "it counts";
  EXPECT_THAT(excuse_of(numbers_run({flip}, {}, /*same_bits=*/false)), HasSubstr("missed"));
  ChaosInjected product = wrong_number(ChaosFault::wrong_product, 12, 1);
  product.before_first_update = true;
  EXPECT_EQ(check_numbers(numbers_run({product}, verdicts)).baseless.size(), 1U) << "no update matters to it";
}

TEST(StepClock, PlacesFaultsByTheEventsOfTheRun) {
  StepClock clock;
  const auto event = [&](const char* kind, int at_s, const char* rest) {
    clock.read(Json::parse(fmt::format(R"({{"event": "{}", "time_us": {}000000{}}})", kind, at_s, rest)));
  };
  const auto step = [&](int at_s, int number) {
    event("step", at_s, fmt::format(R"(, "step": {})", number).c_str());
  };
  const auto placed = [&](std::int64_t at_s) {
    ChaosInjected fault{.fault = ChaosFault::flip_weights, .time_us = at_s * second + second / 2};
    clock.place(fault);
    return std::pair(fault.step, fault.before_first_update);
  };
  event("start", 1, "");
  for (int i = 1; i <= 5; ++i) step(1 + i, i);
  event("fault", 7, R"(, "level": 1, "step": 5)");
  step(8, 4);  // computed again
  step(9, 5);
  event("fault", 9, R"(, "level": 1, "step": 5, "what": "save")");
  event("verdict", 10, R"(, "step": 6, "action": "rollback")");
  EXPECT_EQ(placed(1), std::pair(std::uint64_t{1}, true));
  EXPECT_EQ(placed(4), std::pair(std::uint64_t{4}, false));
  EXPECT_EQ(placed(7), std::pair(std::uint64_t{6}, true)) << "after the death of a rank";
  EXPECT_EQ(placed(8), std::pair(std::uint64_t{5}, false));
  EXPECT_EQ(placed(9), std::pair(std::uint64_t{6}, false)) << "a save that failed changes no state";
  EXPECT_EQ(placed(10), std::pair(std::uint64_t{6}, true));
  ChaosInjected sample{.fault = ChaosFault::bad_sample, .time_us = 4 * second, .step = 17};
  clock.place(sample);
  EXPECT_EQ(sample.step, 17U) << "its place in the data says it";
}

TEST(NumberCheck, WhatTheDataDoIsNoVerdictOfTheCampaign) {
  std::vector<VerdictEvent> verdicts = {spike_on(7), spike_on(8), verdict_on(7, 1)};
  remove_usual(verdicts, {spike_on(7)});
  ASSERT_EQ(verdicts.size(), 2U);
  EXPECT_EQ(verdicts[0].step, 8U);
  EXPECT_EQ(verdicts[1].rank, 1) << "the undisturbed run has none that blames hardware";
}

TEST(NumberCheck, TablesOfACampaign) {
  std::vector<ChaosRun> runs;
  for (const std::uint64_t latency : {0, 0, 3})
    runs.push_back(numbers_run({wrong_number(ChaosFault::flip_moments, 12, 1)},
                               {verdict_on(12 + latency, 1, "state", "evict")}));
  runs[1].ledger.faults = {
      {.level = FaultLevel::in_place, .time_us = 13 * second, .resumed_us = 14 * second}};
  runs.push_back(numbers_run({wrong_number(ChaosFault::wrong_product, 12, 1)}, {}, /*same_bits=*/false));
  runs.back().excuse = "wrong_product: missed";
  const ChaosSummary summary = summarize(runs);
  EXPECT_EQ(summary.right, 3);
  EXPECT_EQ(summary.excused, 1);
  EXPECT_EQ(summary.wrong_runs(), 0);
  const Json json = Json::parse(chaos_json({}, runs, summary));
  const Json moments = json["numbers"]["kinds"]["flip_moments"];
  EXPECT_EQ(moments["found"], 3);
  EXPECT_EQ(moments["right"], 3);
  EXPECT_EQ(moments["median"], 0);
  EXPECT_EQ(moments["max"], 3);
  EXPECT_EQ(json["numbers"]["kinds"]["wrong_product"]["missed"], 1);
  EXPECT_EQ(json["numbers"]["kinds"]["wrong_product"]["same bits"], 0);
  EXPECT_EQ(json["faults"]["flip_moments"]["in place"], 1);
  EXPECT_EQ(json["each"][2]["faults"][0]["latency_steps"], 3);
  EXPECT_EQ(json["each"][3]["excuse"], "wrong_product: missed");
  EXPECT_EQ(json["each"][3]["right"], false);
  EXPECT_THAT(to_text(summary),
              HasSubstr("flip_moments                    3       3         0       0       3"));
  const std::string html = chaos_html({}, runs, summary);
  EXPECT_THAT(html, HasSubstr("all right"));
  EXPECT_THAT(html, HasSubstr("other bits: wrong_product: missed"));
  EXPECT_THAT(html, HasSubstr("Wrong numbers"));
}

}  // namespace
}  // namespace holdfast::test
