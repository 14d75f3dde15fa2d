#include "runtime/plan/layout_search.h"

#include <algorithm>

#include "parallel/pipeline/schedule.h"
#include "runtime/config/option_value.h"
#include "runtime/train/rank_layout.h"

namespace holdfast {
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

// From the fastest to the one that needs least memory.
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

bool better(const LayoutPlan& a, const LayoutPlan& b, const PlannedMachine& machine) {
  const auto key = [&](const LayoutPlan& plan) {
    const double seconds = plan.time.has_value() ? plan.time->seconds() : 0.0;
    return std::pair(seconds, plan.largest(machine).needed_bytes(machine));
  };
  return key(a) < key(b);
}

class Search {
 public:
  Search(Env& env, const Config& config, int ranks, const PlannedMachine& machine)
      : env_(env), config_(config), ranks_(ranks), machine_(machine) {}

  LayoutSearch run() {
    const std::int64_t stages_max = std::min<std::int64_t>(ranks_, config_.model.layers + 2);
    for (std::int64_t pipeline = 1; pipeline <= stages_max; ++pipeline) {
      for (std::int64_t tensor = 1; tensor <= config_.parallel.tensor_lanes; tensor *= 2) {
        if (ranks_ % (pipeline * tensor) == 0) add_best_schedule(pipeline, tensor);
      }
    }
    std::ranges::stable_sort(
        found_.plans, [&](const LayoutPlan& a, const LayoutPlan& b) { return better(a, b, machine_); });
    return std::move(found_);
  }

 private:
  void add_best_schedule(std::int64_t pipeline, std::int64_t tensor) {
    std::optional<LayoutPlan> best;
    for (const ScheduleChoice& schedule : schedules_of(pipeline, config_.model.layers)) {
      std::optional<LayoutPlan> plan = first_that_fits(with_layout(config_, pipeline, tensor, schedule));
      if (plan.has_value() && (!best.has_value() || better(*plan, *best, machine_))) best = std::move(plan);
    }
    if (best.has_value()) found_.plans.push_back(std::move(*best));
  }

  std::optional<LayoutPlan> first_that_fits(Config config) {
    if (!check_layout(config, ranks_).ok()) return std::nullopt;
    for (const char* recompute : recompute_modes) {
      config.training.recompute = recompute;
      Result<LayoutPlan> plan = plan_layout(env_, config, ranks_, machine_);
      ++found_.tried;
      if (plan.ok() && plan->fits(machine_)) return std::move(plan).value();
    }
    return std::nullopt;
  }

  Env& env_;
  const Config& config_;
  int ranks_;
  const PlannedMachine& machine_;
  LayoutSearch found_;
};

std::string quoted(const std::string& text) {
  return fmt::format("\"{}\"", text);
}

std::optional<LayoutPlan> if_it_fits(Env& env, const Config& config, int ranks,
                                     const PlannedMachine& machine) {
  Result<LayoutPlan> plan = plan_layout(env, config, ranks, machine);
  if (!plan.ok() || !plan->fits(machine)) return std::nullopt;
  return std::move(plan).value();
}

// As many tokens in a step in smaller portions.
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

LayoutSearch search_layouts(Env& env, const Config& config, int ranks, const PlannedMachine& machine) {
  return Search(env, config, ranks, machine).run();
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
  if (const LayoutSearch search = search_layouts(env, config, ranks, machine); !search.plans.empty()) {
    const LayoutPlan& plan = search.plans.front();
    return Remedy{.settings = layout_settings(plan), .ranks = ranks, .plan = plan};
  }
  for (Config& changed : smaller_microbatches(config)) {
    const LayoutSearch search = search_layouts(env, changed, ranks, machine);
    if (search.plans.empty()) continue;
    const LayoutPlan& plan = search.plans.front();
    Remedy remedy{.settings = layout_settings(plan), .ranks = ranks, .new_run = true, .plan = plan};
    remedy.settings.push_back({"training.microbatch_size", std::to_string(changed.training.microbatch_size)});
    remedy.settings.push_back(
        {"training.microbatches_per_lane", std::to_string(changed.training.microbatches_per_lane)});
    return remedy;
  }
  constexpr int times_max = 64;
  for (int times = 2; times <= times_max; times *= 2) {
    const LayoutSearch search = search_layouts(env, config, ranks * times, machine);
    if (search.plans.empty()) continue;
    const LayoutPlan& plan = search.plans.front();
    return Remedy{.settings = layout_settings(plan), .ranks = ranks * times, .plan = plan};
  }
  return std::nullopt;
}

}  // namespace holdfast
