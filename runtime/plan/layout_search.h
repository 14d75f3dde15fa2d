// Which layouts of so many ranks fit, the fastest first; and where none does, the smallest change that helps.
//
// A search counts and prices as little as it can and still finds what planning every layout would find. Of
// each candidate (a layout with a schedule and a recomputation) it knows a time that it cannot beat
// (LayoutPlanner::min_seconds). The candidate whose time is the least known is looked at next: first the
// memory of the rank that keeps most activations, which leaves out most of what does not fit; then its time;
// and when no other can be faster, the memory of all its ranks. What the search ends before is never priced.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/layout_plan.h"

namespace holdfast::inline plan {

// Keys of a config and their values, as one writes them: {"training.recompute", "\"full\""}.
struct Setting {
  std::string key, value;
};

// The keys by which the layout of a plan differs from the defaults, and recompute.
std::vector<Setting> layout_settings(const LayoutPlan& plan);

struct LayoutSearch {
  // That fit, the fastest first; without prices those with the least FLOP and bubble in a row. Of equal times
  // the one that receives the fewest bytes comes first.
  std::vector<LayoutPlan> plans;
  int tried = 0;      // candidates: layouts that can run, with every schedule and recomputation
  int too_large = 0;  // of them, seen not to fit
  int priced = 0;     // of them
  int slower = 0;     // of them, never priced: enough others are faster
  LayoutPlanner::Counts counts;
};

struct SearchOptions {
  std::size_t layouts_max = 10;  // that are looked for
  // Called again and again while the search goes on.
  std::function<void(const LayoutSearch&)> progress = {};
};

// Of every data x pipeline x tensor that the model, the lanes and the ranks allow: the fastest schedule, with
// as little recomputation as fits. gpipe is left out: it takes the time of 1f1b and more memory.
LayoutSearch search_layouts(Env& env, const Config& config, int ranks, const PlannedMachine& machine,
                            const SearchOptions& options = {});

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

}  // namespace holdfast::inline plan
