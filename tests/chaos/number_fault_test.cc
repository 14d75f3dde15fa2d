#include "tools/chaos/chaos_fault.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "runtime/config/loader.h"
#include "runtime/core/digest.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"
#include "tools/chaos/campaign.h"
#include "tools/chaos/chaos_plan.h"

namespace holdfast::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

std::vector<ChaosFault> number_faults() {
  return read_faults("numbers").value();
}

std::string words_before(const std::string& text, char end) {
  return text.substr(0, text.find(end));
}

TEST(NumberFault, EachIsWhatTheProgramUnderstands) {
  std::map<ChaosFault, std::set<std::string>> actions;
  for (const ChaosFault fault : number_faults()) {
    for (std::uint64_t draw = 0; draw < 2000; ++draw) {
      const std::string point = number_fault_point(
          fault, {.step = 12, .rank = 3, .lanes_of_rank = 2, .samples_of_step = 8, .draw = draw * 7919});
      ASSERT_TRUE(FaultPoints::parse(point, 0, posix_env()).ok()) << point;
      const std::string action = point.substr(point.find('=') + 1);
      actions[fault].insert(action.substr(0, action.rfind(':')));
    }
  }
  EXPECT_THAT(actions[ChaosFault::flip_weights], ElementsAre("flip:weights"));
  EXPECT_THAT(actions[ChaosFault::flip_moments], ElementsAre("flip:moment1", "flip:moment2"));
  EXPECT_THAT(actions[ChaosFault::wrong_product], ElementsAre("wrong_product"));
  EXPECT_THAT(actions[ChaosFault::wrong_product_always], ElementsAre("wrong_product_always"));
  EXPECT_THAT(actions[ChaosFault::bad_sample], ElementsAre("nan", "scramble"));
  EXPECT_THAT(actions[ChaosFault::wrong_rate], ElementsAre("scale_rate"));
}

TEST(NumberFault, OnlyMomentsThatTheOptimizerKeepsAreDrawn) {
  for (std::uint64_t draw = 0; draw < 100; ++draw)
    EXPECT_THAT(number_fault_point(ChaosFault::flip_moments, {.moment_count = 1, .draw = draw * 7919}),
                HasSubstr("flip:moment1"));
}

TEST(NumberFault, AllPlacesOfAKindComeUp) {
  std::set<std::string> weights, nans, bits, passes, samples;
  for (std::uint64_t draw = 0; draw < 2000; ++draw) {
    const NumberPlace place{
        .step = 12, .rank = 3, .lanes_of_rank = 2, .samples_of_step = 8, .draw = draw * 7919};
    const std::string flip = number_fault_point(ChaosFault::flip_weights, place);
    weights.insert(words_before(flip, '@'));
    bits.insert(flip.substr(flip.rfind(':')));
    nans.insert(number_fault_point(ChaosFault::nan, place));
    passes.insert(words_before(number_fault_point(ChaosFault::flip_gradients, place), '='));
    samples.insert(words_before(number_fault_point(ChaosFault::bad_sample, place), '='));
  }
  EXPECT_THAT(weights, ElementsAre("step.after_vote", "step.begin", "step.end"));
  EXPECT_EQ(bits.size(), 32U);
  EXPECT_THAT(nans, IsSupersetOf({"step.begin@12:3=nan:weights", "step.begin@12:3=nan:moment1",
                                  "step.begin@12:3=nan:parameters"}));
  EXPECT_THAT(passes, ElementsAre("step.before_reduce@23:3", "step.before_reduce@24:3")) << "of two lanes";
  EXPECT_EQ(samples.size(), 8U);
  EXPECT_THAT(samples, IsSupersetOf({"data.sample@89", "data.sample@96"}));
  EXPECT_EQ(step_of_sample(88, 8), 11U);
  EXPECT_EQ(step_of_sample(89, 8), 12U);
  EXPECT_EQ(step_of_sample(96, 8), 12U);
}

ChaosLimits number_limits() {
  ChaosLimits limits{.steps = 50, .layouts = layouts_up_to(4, 2, 2), .faults = number_faults()};
  limits.faults.push_back(ChaosFault::kill);
  limits.lanes = 4;
  limits.samples_of_step = 8;
  limits.savings = {""};
  limits.audits = "--verdict.audit_every_steps=1";
  return limits;
}

TEST(NumberFault, PlansHaveThem) {
  std::set<ChaosFault> seen;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const ChaosPlan plan = plan_chaos(seed, number_limits());
    ASSERT_FALSE(plan.injections.empty());
    int samples = 0, lasting = 0, numbers = 0;
    for (const ChaosInjection& injection : plan.injections) {
      seen.insert(injection.fault);
      samples += injection.fault == ChaosFault::bad_sample ? 1 : 0;
      lasting += injection.fault == ChaosFault::wrong_product_always ? 1 : 0;
      numbers += facts_of(injection.fault).of_numbers ? 1 : 0;
      EXPECT_EQ(injection.point.empty(), injection.fault == ChaosFault::kill);
    }
    EXPECT_LE(samples, 1) << "its twin is one run";
    EXPECT_LE(lasting, 1);
    EXPECT_EQ(plan.audits.empty(), numbers == 0);
    EXPECT_EQ(fault_points_of(plan, {.only_of_data = true}).empty(), samples == 0);
    EXPECT_TRUE(FaultPoints::parse(fault_points_of(plan), 0, posix_env()).ok()) << fault_points_of(plan);
  }
  EXPECT_EQ(seen.size(), number_limits().faults.size());
}

TEST(NumberFault, ASampleIsOneWhoeverReadsIt) {
  const ChaosInjection sample{.fault = ChaosFault::bad_sample, .point = "data.sample@70=nan"};
  EXPECT_TRUE(is_armed_by(sample, "data.sample", 70, 2, "nan"));
  EXPECT_FALSE(is_armed_by(sample, "data.sample", 7, 2, "nan"));
  const ChaosInjection flip{.fault = ChaosFault::flip_weights, .point = "step.end@7:1=flip:weights:3"};
  EXPECT_TRUE(is_armed_by(flip, "step.end", 7, 1, "flip:weights:3"));
  EXPECT_FALSE(is_armed_by(flip, "step.end", 7, 2, "flip:weights:3"));
}

// A seed of a campaign that was made before there were number faults repeats its plan.
TEST(NumberFault, PlansWithoutThemStayAsTheyWere) {
  ChaosLimits limits{.steps = 50, .layouts = layouts_up_to(4, 2, 2), .faults = read_faults("all").value()};
  for (const ChaosFault later : {ChaosFault::unfit_host, ChaosFault::cut_pair, ChaosFault::stopped_host,
                                 ChaosFault::read_error, ChaosFault::write_error, ChaosFault::load_error,
                                 ChaosFault::slow_storage, ChaosFault::gpu_fault, ChaosFault::sick_host})
    std::erase(limits.faults, later);
  limits.lanes = 4;
  limits.points = {"step.begin", "step.before_reduce", "step.after_vote", "save.before_rename"};
  limits.savings = {"", "--checkpoint.ram_every_steps=1"};
  limits.audits = "--verdict.audit_every_steps=1";
  std::string text;
  for (const bool kills_only : {false, true}) {
    limits.kills_only = kills_only;
    for (std::uint64_t seed = 1; seed <= 200; ++seed)
      for (const std::string& line : to_lines(plan_chaos(seed, limits))) text += line + "\n";
  }
  EXPECT_EQ(to_hex(digest_of(text)), "0c17266865236bfb3ef0e2f553b9838f");
}

TEST(ChaosFaults, AreReadFromAList) {
  EXPECT_THAT(read_faults("kill,nan").value(), ElementsAre(ChaosFault::kill, ChaosFault::nan));
  EXPECT_EQ(read_faults("all,numbers").value().size(), chaos_fault_kinds);
  EXPECT_TRUE(read_faults("").value().empty());
  EXPECT_THAT(read_faults("kill,x,crash").error().message,
              HasSubstr("there is no fault x; there are kill, "));
  EXPECT_THAT(read_faults("number").error().message, HasSubstr("did you mean numbers?"));
  for (const char* list : {"kill,nan", "all", "numbers", "all,numbers", "kill,numbers", "all,bad_sample", ""})
    EXPECT_EQ(to_list(read_faults(list).value()), list);
}

Config number_config() {
  Config config;
  config.model.layers = 2;
  config.model.heads = config.model.kv_heads = 4;
  config.model.width = 64;
  config.model.vocabulary = 256;
  config.training.steps = 50;
  config.training.sequence_length = 64;
  config.training.microbatch_size = 2;
  config.training.microbatches_per_lane = 3;
  config.parallel.lanes = 4;
  EXPECT_TRUE(resolve_config(config, 256).ok());
  return config;
}

TEST(NumberFault, TheyAreDrawnWhereTheyAreAskedFor) {
  CampaignOptions options{.config = "run.toml"};
  EXPECT_THAT(choose_limits(number_config(), options, {})->limits.faults,
              Not(Contains(ChaosFault::flip_weights)));
  options.faults = read_faults("numbers").value();
  const ChaosLimits limits = choose_limits(number_config(), options, {})->limits;
  EXPECT_EQ(limits.faults, number_faults());
  EXPECT_EQ(limits.samples_of_step, 24);
  EXPECT_EQ(limits.moment_count, 2);
  EXPECT_EQ(limits.audits, "--verdict.audit_every_steps=1");
  options.overrides = {"--verdict.audit_every_steps=5"};
  EXPECT_EQ(choose_limits(number_config(), options, {})->limits.audits, "") << "the user says how often";
}

TEST(NumberFault, ThoseThatNothingWouldFindAreLeftOut) {
  const CampaignOptions options{.config = "run.toml", .faults = read_faults("kill,numbers").value()};
  const auto skipped_of = [&](const Config& config) { return choose_limits(config, options, {})->skipped; };
  EXPECT_TRUE(skipped_of(number_config()).empty());
  Config config = number_config();
  config.verdict.preset = "watch";
  EXPECT_EQ(skipped_of(config).size(), number_faults().size());
  config = number_config();
  config.device = "cuda";
  const auto products =
      ElementsAre(testing::Key(ChaosFault::wrong_product), testing::Key(ChaosFault::wrong_product_always));
  EXPECT_THAT(skipped_of(config), products);
  config.device = "auto";
  EXPECT_TRUE(skipped_of(config).empty());
  EXPECT_THAT(choose_limits(config, options, {.auto_is_gpu = true})->skipped, products);
  config.device = "cpu";
  EXPECT_TRUE(choose_limits(config, options, {.auto_is_gpu = true})->skipped.empty());
  config = number_config();
  config.model.freeze = {"token_embedding"};
  EXPECT_THAT(skipped_of(config),
              ElementsAre(testing::Key(ChaosFault::flip_weights), testing::Key(ChaosFault::nan)));
  config = number_config();
  config.verdict.skips_max = 0;
  EXPECT_THAT(skipped_of(config), ElementsAre(testing::Key(ChaosFault::bad_sample)));
}

}  // namespace
}  // namespace holdfast::test
