// Which layouts of so many ranks fit, the fastest first; and where none does, the smallest change that helps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/layout_plan.h"

namespace holdfast {

// Keys of a config and their values, as one writes them: {"training.recompute", "\"full\""}.
struct Setting {
  std::string key, value;
};

// The keys by which the layout of a plan differs from the defaults, and recompute.
std::vector<Setting> layout_settings(const LayoutPlan& plan);

struct LayoutSearch {
  std::vector<LayoutPlan> plans;  // that fit: the fastest first, or without prices the smallest
  int tried = 0;                  // layouts that can run, with every schedule and recompute that was planned
};
// Of every data x pipeline x tensor that the model, the lanes and the ranks allow: the fastest schedule, with
// as little recomputation as fits. gpipe is left out: it takes the time of 1f1b and more memory.
LayoutSearch search_layouts(Env& env, const Config& config, int ranks, const PlannedMachine& machine);

// What makes a run fit that does not.
struct Remedy {
  std::vector<Setting> settings;  // to change
  int ranks = 1;
  bool new_run = false;  // the change is none for a run that has begun: its bits would be others
  LayoutPlan plan;
};
// The first of these that fits: recomputing; another layout of these ranks; smaller microbatches, more of
// them; up to 64 times the ranks. None: nothing does.
std::optional<Remedy> smallest_remedy(Env& env, const Config& config, int ranks,
                                      const PlannedMachine& machine);

}  // namespace holdfast
