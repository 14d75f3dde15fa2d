// Tests what a search of layouts promises, over random models, machines and limits of memory: beside the
// plans of all candidates, which are made one by one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "runtime/config/loader.h"
#include "runtime/plan/layout_search.h"
#include "runtime/plan/plan_report.h"
#include "runtime/rank/rank_layout.h"
#include "runtime/run/run_layout.h"
#include "tests/support/schedule_check.h"

namespace holdfast::test {
namespace {

struct Question {
  Config config;
  int ranks = 1;
  PlannedMachine machine;
};

std::string text_of(const Question& question) {
  const Config& config = question.config;
  return fmt::format(
      "{} layers of {}, {} lanes, {} slices, {} x {} samples, {} ranks, {} on a host, {} bytes",
      config.model.layers, config.model.width, config.parallel.lanes, config.parallel.tensor_lanes,
      config.training.microbatches_per_lane, config.training.microbatch_size, question.ranks,
      question.machine.ranks_per_host, question.machine.rank_bytes.value_or(0));
}

class RandomQuestions {
 public:
  explicit RandomQuestions(unsigned seed) : random_(seed) {}
  template <typename Value>
  Value one_of(const std::vector<Value>& values) {
    return values[random_() % values.size()];
  }

  // Without a limit of memory.
  Question question() {
    Question question;
    Config& config = question.config;
    config.run.directory = "unused";
    config.model.layers = one_of<int>({1, 2, 3, 4, 5});
    config.model.heads = 2;
    config.model.width = one_of<int>({32, 64});
    config.training.steps = 10;
    config.training.sequence_length = 16;
    config.training.microbatch_size = one_of<int>({1, 2});
    config.training.microbatches_per_lane = one_of<int>({1, 2, 3});
    config.training.precision = one_of<std::string>({"fp32", "bf16"});
    config.parallel.lanes = one_of<int>({1, 2, 3, 4, 8});
    config.parallel.tensor_lanes = one_of<int>({1, 2});
    config.checkpoint.every_steps = 0;
    config.checkpoint.ram_every_steps = one_of<int>({0, 1});
    EXPECT_TRUE(resolve_config(config, 256).ok());
    question.ranks = one_of<int>({1, 2, 3, 4, 6, 8});
    question.machine = {.ranks_per_host = one_of<int>({0, 2, 3, 4}), .prices = one_of(prices_)};
    if (one_of<int>({0, 1}) == 1) {
      question.machine.link_bytes_per_second = 3e8;
      question.machine.host_link_bytes_per_second = 2e9;
      question.machine.overlaps_messages = one_of<int>({0, 1}) == 1;
    }
    return question;
  }

 private:
  std::mt19937 random_;
  // Products alone take time; mostly memory does.
  PeakPrices products_{1e9, 1e30, "products"}, memory_{1e12, 1e9, "memory"};
  std::vector<const OpPrices*> prices_ = {&products_, &memory_};
};

using Shape = std::pair<std::int64_t, std::int64_t>;  // pipeline and tensor degree

Shape shape_of(const LayoutPlan& plan) {
  return {plan.config.parallel.pipeline, plan.config.parallel.tensor};
}

// Returns the plans of all candidates: every degree, schedule, number of chunks and recomputation that can
// run.
std::vector<LayoutPlan> all_plans(const Question& question) {
  std::vector<LayoutPlan> plans;
  LayoutPlanner planner(posix_env(), question.machine);
  const std::vector<std::pair<const char*, int>> schedules = {
      {"1f1b", 1}, {"zero_bubble", 1}, {"interleaved", 2}, {"interleaved", 3}, {"interleaved", 4}};
  for (int pipeline = 1; pipeline <= question.ranks; ++pipeline) {
    for (int tensor = 1; tensor <= 2; tensor *= 2) {
      for (const auto& [schedule, chunks] : schedules) {
        if (pipeline == 1 && schedule != std::string_view("1f1b")) continue;
        if (chunks > 1 && chunks * pipeline > question.config.model.layers) continue;
        for (const char* recompute : {"none", "selective", "full"}) {
          Config config = question.config;
          config.parallel.pipeline = pipeline;
          config.parallel.tensor = tensor;
          config.parallel.pipeline_schedule = schedule;
          config.parallel.pipeline_chunks = chunks;
          config.training.recompute = recompute;
          Result<LayoutPlan> plan = planner.plan(config, question.ranks);
          if (plan.ok()) plans.push_back(std::move(plan).value());
        }
      }
    }
  }
  return plans;
}

// Checks that a run could be started with the plan: the rules of layouts, its schedule, hosts and memory.
void expect_feasible(const LayoutPlan& plan, const Question& question) {
  const PlannedMachine& machine = question.machine;
  ASSERT_TRUE(check_layout(plan.config, question.ranks).ok());
  ASSERT_EQ(plan.shape.ranks(), question.ranks);
  const int on_host = machine.ranks_on_host(question.ranks);
  ASSERT_TRUE(on_host == question.ranks || on_host % plan.shape.tensor == 0)
      << "a tensor group crosses hosts";
  const LaneSchedule lanes(static_cast<int>(plan.config.parallel.lanes), plan.shape.data);
  for (const int data_rank : {0, plan.shape.data - 1}) {
    const PipelineSchedule schedule = pipeline_schedule(plan.config, lanes, data_rank);
    ASSERT_TRUE(schedule_problems(make_schedule(schedule.shape)).empty());
  }
  for (const RankPlan& rank : plan.ranks)
    ASSERT_LE(rank.needed_bytes(machine), machine.bytes_for_rank(question.ranks).value_or(~0ULL));
}

// Checks the answer against all candidates: of each shape of which any fits there is one plan, and none that
// fits is faster.
void expect_best(const LayoutSearch& search, const std::vector<LayoutPlan>& all, const Question& question) {
  std::map<Shape, double> fastest;
  for (const LayoutPlan& plan : all) {
    if (!plan.fits(question.machine)) continue;
    const auto [best, is_first] = fastest.try_emplace(shape_of(plan), plan.time->seconds());
    if (!is_first) best->second = std::min(best->second, plan.time->seconds());
  }
  ASSERT_EQ(search.plans.size(), fastest.size());
  ASSERT_EQ(search.tried, std::ssize(all));
  std::set<Shape> shapes;
  double before = 0.0;
  for (const LayoutPlan& plan : search.plans) {
    ASSERT_TRUE(shapes.insert(shape_of(plan)).second) << "a shape is there twice";
    ASSERT_TRUE(fastest.contains(shape_of(plan)));
    ASSERT_DOUBLE_EQ(plan.time->seconds(), fastest[shape_of(plan)]);
    ASSERT_GE(plan.time->seconds(), before) << "a slower one comes first";
    before = plan.time->seconds();
  }
}

LayoutSearch searched(const Question& question, std::size_t layouts_max) {
  return search_layouts(posix_env(), question.config, question.ranks, question.machine,
                        {.layouts_max = layouts_max});
}

// Limits of memory at which some candidate just fits or just does not, and none at all.
TEST(LayoutSearchProperty, FindsTheBestThatFitsAndIsFeasible) {
  constexpr int questions = 40;
  RandomQuestions random(20261124);
  int answered = 0, refused = 0, candidates = 0;
  for (int i = 0; i < questions; ++i) {
    Question question = random.question();
    const std::vector<LayoutPlan> all = all_plans(question);
    candidates += static_cast<int>(all.size());
    for (int limit = 0; limit < 3 && !all.empty(); ++limit) {
      const LayoutPlan& at_limit = random.one_of(all);
      question.machine.rank_bytes =
          at_limit.largest(question.machine).needed_bytes(question.machine) - random.one_of<unsigned>({0, 1});
      const LayoutSearch search = searched(question, 100);
      expect_best(search, all, question);
      for (const LayoutPlan& plan : search.plans) expect_feasible(plan, question);
      const LayoutSearch again = searched(question, 2);
      for (std::size_t k = 0; k < again.plans.size(); ++k)
        ASSERT_EQ(settings_text(layout_settings(again.plans[k])),
                  settings_text(layout_settings(search.plans[k])));
      ASSERT_EQ(again.plans.size(), std::min<std::size_t>(2, search.plans.size()));
      (search.plans.empty() ? refused : answered) += 1;
      if (testing::Test::HasFatalFailure()) FAIL() << "question " << i << ": " << text_of(question);
    }
  }
  EXPECT_GT(answered, questions);
  EXPECT_GT(refused, 0);
  EXPECT_GT(candidates, 5 * questions);
}

// The search orders candidates by what they at least take, and ends at the first that it knows to be faster
// than that of all others; so a bound above the time would lose answers.
TEST(LayoutSearchProperty, NothingIsFasterThanItsBound) {
  RandomQuestions random(20261125);
  for (int i = 0; i < 40; ++i) {
    const Question question = random.question();
    LayoutPlanner planner(posix_env(), question.machine);
    for (const LayoutPlan& plan : all_plans(question)) {
      const Result<double> bound = planner.min_seconds(plan.config, question.ranks);
      ASSERT_TRUE(bound.ok());
      ASSERT_LE(*bound, plan.time->seconds()) << text_of(question);
    }
  }
}

}  // namespace
}  // namespace holdfast::test
