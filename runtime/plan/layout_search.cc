#include "runtime/plan/layout_search.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>

#include "parallel/pipeline/schedule.h"
#include "runtime/config/option_value.h"
#include "runtime/rank/rank_layout.h"

namespace holdfast::plan {
namespace {

constexpr int chunks_max = 4;  // that are tried; more of them send more messages

struct ScheduleChoice {
  std::string kind = "1f1b";
  std::int64_t chunks = 1;
};

std::vector<ScheduleChoice> schedules_of(std::int64_t stages, std::int64_t layers) {
  std::vector<ScheduleChoice> choices = {{}};
  if (stages == 1) return choices;
  const Option* option = find_option("parallel.pipeline_schedule");
  const auto has = [&](ScheduleKind kind) {
    return std::ranges::find(option->choices, std::string_view(name_of(kind))) != option->choices.end();
  };
  if (has(ScheduleKind::zero_bubble)) choices.push_back({.kind = name_of(ScheduleKind::zero_bubble)});
  for (std::int64_t chunks = 2; chunks <= chunks_max && chunks * stages <= layers; ++chunks) {
    choices.push_back({.kind = name_of(ScheduleKind::interleaved), .chunks = chunks});
  }
  return choices;
}

// Modes from the fastest to the one that needs least memory.
constexpr const char* recompute_modes[] = {"none", "selective", "full"};

Config with_layout(Config config, std::int64_t pipeline, std::int64_t tensor,
                   const ScheduleChoice& schedule) {
  config.parallel.data = 0;
  config.parallel.pipeline = pipeline;
  config.parallel.tensor = tensor;
  config.parallel.pipeline_schedule = schedule.kind;
  config.parallel.pipeline_chunks = schedule.chunks;
  return config;
}

// A layout with a schedule and a recomputation, and what the search knows of it so far.
struct Candidate {
  Config config;
  enum class Known { bound, time } known = Known::bound;
  double seconds = 0.0;    // that it takes, or at least takes
  double bytes = 0.0;      // that a rank receives; 0 while only a bound is known
  std::size_t number = 0;  // in the order of enumeration
  std::pair<std::int64_t, std::int64_t> shape() const {
    return {config.parallel.pipeline, config.parallel.tensor};
  }
  bool operator>(const Candidate& other) const {
    return std::tuple(seconds, bytes, number) > std::tuple(other.seconds, other.bytes, other.number);
  }
};

class Search {
 public:
  Search(Env& env, const Config& config, int ranks, const PlannedMachine& machine,
         const SearchOptions& options)
      : config_(config), ranks_(ranks), options_(options), planner_(env, machine) {}

  LayoutSearch run() {
    enumerate();
    while (!candidates_.empty() && found_.plans.size() < options_.layouts_max) {
      Candidate next = candidates_.top();
      candidates_.pop();
      shapes_found_.contains(next.shape()) ? leave_alone(next) : look_at(std::move(next));
      report_progress();
    }
    for (; !candidates_.empty(); candidates_.pop()) leave_alone(candidates_.top());
    return std::move(found_);
  }

 private:
  void enumerate() {
    const std::int64_t stages_max = std::min<std::int64_t>(ranks_, config_.model.layers + 2);
    for (std::int64_t pipeline = 1; pipeline <= stages_max; ++pipeline) {
      for (std::int64_t tensor = 1; tensor <= config_.parallel.tensor_lanes; tensor *= 2) {
        if (ranks_ % (pipeline * tensor) != 0) continue;
        for (const ScheduleChoice& schedule : schedules_of(pipeline, config_.model.layers)) {
          add(with_layout(config_, pipeline, tensor, schedule));
        }
      }
    }
  }

  void add(Config config) {
    for (const char* recompute : recompute_modes) {
      config.training.recompute = recompute;
      const Result<double> bound = planner_.min_seconds(config, ranks_);
      if (!bound.ok()) return;
      ++found_.tried;
      candidates_.push({.config = config, .seconds = *bound, .number = number_++});
      report_progress();
    }
  }

  void leave_alone(const Candidate& candidate) {
    found_.slower += candidate.known == Candidate::Known::bound ? 1 : 0;
  }

  // Every other candidate takes at least as long as is known of this one.
  void look_at(Candidate candidate) {
    if (candidate.known == Candidate::Known::bound) {
      const Result<bool> fits = planner_.first_rank_fits(candidate.config, ranks_);
      if (!fits.ok() || !*fits) {
        ++found_.too_large;
        return;
      }
      const Result<StepEstimate> estimate = planner_.estimate(candidate.config, ranks_);
      if (!estimate.ok()) return;
      ++found_.priced;
      candidate.known = Candidate::Known::time;
      candidate.seconds = estimate->time.seconds();
      candidate.bytes = estimate->bytes_received;
      candidates_.push(std::move(candidate));
      return;
    }
    Result<std::optional<LayoutPlan>> plan = planner_.plan_if_it_fits(candidate.config, ranks_);
    if (!plan.ok() || !plan->has_value()) {
      ++found_.too_large;
      return;
    }
    shapes_found_.insert(candidate.shape());
    found_.plans.push_back(std::move(**plan));
  }

  void report_progress() {
    found_.counts = planner_.counts();
    if (options_.progress) options_.progress(found_);
  }

  const Config& config_;
  int ranks_;
  const SearchOptions& options_;
  LayoutPlanner planner_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates_;
  std::set<std::pair<std::int64_t, std::int64_t>> shapes_found_;
  std::size_t number_ = 0;
  LayoutSearch found_;
};

std::string quoted(const std::string& text) {
  return fmt::format("\"{}\"", text);
}

std::optional<LayoutPlan> if_it_fits(Env& env, const Config& config, int ranks,
                                     const PlannedMachine& machine) {
  Result<std::optional<LayoutPlan>> plan = LayoutPlanner(env, machine).plan_if_it_fits(config, ranks);
  return plan.ok() ? std::move(plan).value() : std::nullopt;
}

// Returns configs with as many tokens in a step, but smaller microbatches.
std::vector<Config> smaller_microbatches(const Config& config) {
  std::vector<Config> configs;
  Config smaller = config;
  while (smaller.training.microbatch_size % 2 == 0) {
    smaller.training.microbatch_size /= 2;
    smaller.training.microbatches_per_lane *= 2;
    configs.push_back(smaller);
  }
  return configs;
}

}  // namespace

std::vector<Setting> layout_settings(const LayoutPlan& plan) {
  const ParallelConfig& parallel = plan.config.parallel;
  std::vector<Setting> settings = {{"parallel.data", std::to_string(plan.shape.data)}};
  if (parallel.tensor > 1) settings.push_back({"parallel.tensor", std::to_string(parallel.tensor)});
  if (parallel.pipeline > 1) {
    settings.push_back({"parallel.pipeline", std::to_string(parallel.pipeline)});
    settings.push_back({"parallel.pipeline_schedule", quoted(parallel.pipeline_schedule)});
  }
  if (parallel.pipeline_chunks > 1)
    settings.push_back({"parallel.pipeline_chunks", std::to_string(parallel.pipeline_chunks)});
  settings.push_back({"training.recompute", quoted(plan.config.training.recompute)});
  return settings;
}

std::int64_t best_lane_block(const LayoutPlan& plan, const PlannedMachine& machine) {
  const int copy = plan.shape.pipeline * plan.shape.tensor;
  int on_host = 1;
  while (on_host < plan.shape.data && machine.same_host(0, on_host * copy)) ++on_host;
  if (on_host == plan.shape.data) return 1;
  return std::gcd(std::gcd(on_host, plan.shape.data), plan.config.parallel.lanes);
}

LayoutSearch search_layouts(Env& env, const Config& config, int ranks, const PlannedMachine& machine,
                            const SearchOptions& options) {
  return Search(env, config, ranks, machine, options).run();
}

std::optional<Remedy> smallest_remedy(Env& env, const Config& config, int ranks,
                                      const PlannedMachine& machine) {
  for (const char* recompute : recompute_modes) {
    Config changed = config;
    changed.training.recompute = recompute;
    if (std::optional<LayoutPlan> plan = if_it_fits(env, changed, ranks, machine)) {
      return Remedy{.settings = {{"training.recompute", quoted(recompute)}}, .ranks = ranks, .plan = *plan};
    }
  }
  if (const LayoutSearch search = search_layouts(env, config, ranks, machine, {.layouts_max = 1});
      !search.plans.empty()) {
    const LayoutPlan& plan = search.plans.front();
    return Remedy{.settings = layout_settings(plan), .ranks = ranks, .plan = plan};
  }
  for (Config& changed : smaller_microbatches(config)) {
    const LayoutSearch search = search_layouts(env, changed, ranks, machine, {.layouts_max = 1});
    if (search.plans.empty()) continue;
    const LayoutPlan& plan = search.plans.front();
    Remedy remedy{.settings = layout_settings(plan), .ranks = ranks, .new_run = true, .plan = plan};
    remedy.settings.push_back({"training.microbatch_size", std::to_string(changed.training.microbatch_size)});
    remedy.settings.push_back(
        {"training.microbatches_per_lane", std::to_string(changed.training.microbatches_per_lane)});
    return remedy;
  }
  constexpr int times_max = 64, ranks_max = 1 << 16;
  for (int times = 2; times <= times_max && ranks <= ranks_max / times; times *= 2) {
    const LayoutSearch search = search_layouts(env, config, ranks * times, machine, {.layouts_max = 1});
    if (search.plans.empty()) continue;
    const LayoutPlan& plan = search.plans.front();
    return Remedy{.settings = layout_settings(plan), .ranks = ranks * times, .plan = plan};
  }
  return std::nullopt;
}

}  // namespace holdfast::plan
