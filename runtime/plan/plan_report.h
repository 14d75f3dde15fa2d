// Reports are the answer of `holdfast plan`, on one screen for people and as one JSON object for programs.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/plan/layout_plan.h"
#include "runtime/plan/layout_search.h"

namespace holdfast::plan {

// A layout, and the same run after ranks were lost.
struct RunPlan {
  LayoutPlan layout;
  // Plans with one replica less, and with elastic.min_data_parallel; only those that are less than the layout
  // has.
  std::vector<LayoutPlan> smaller;
};

std::string count_text(double count);  // "1.05 T", with a space also where there is no unit

// Returns a description of a run of this resolved config, whatever its layout: the first lines of an answer.
std::string run_text(const Config& config);
std::string plan_text(const RunPlan& plan, const PlannedMachine& machine);
Json plan_json(const RunPlan& plan, const PlannedMachine& machine);

// Returns the layouts of `ranks` ranks as a table, why the first is the first, and the keys that give it.
// `config` is that of the search.
std::string search_text(const LayoutSearch& search, const Config& config, int ranks,
                        const PlannedMachine& machine);
Json search_json(const LayoutSearch& search, const Config& config, int ranks, const PlannedMachine& machine);

// Returns "parallel.pipeline = 2, training.recompute = "full"".
std::string settings_text(const std::vector<Setting>& settings);
// Returns a sentence: what would fit, and what it would need.
std::string remedy_text(const Remedy& remedy, int ranks, const PlannedMachine& machine);
Json remedy_json(const Remedy& remedy, const PlannedMachine& machine);

}  // namespace holdfast::plan
