// A layout search finds the layouts that fit for a number of ranks, the fastest first; and where none does,
// the smallest change that helps.
//
// A search counts and prices as little as it can and still finds what planning every layout would find. For
// each candidate (a layout with a schedule and a recomputation) it knows a lower bound of the time
// (LayoutPlanner::min_seconds). The candidate with the least known time is examined next: first the memory of
// the rank that keeps most activations, which rules out most layouts that do not fit; then its time; and when
// no other can be faster, the memory of all its ranks. Candidates that the search never reaches are never
// priced.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/layout_plan.h"

namespace holdfast::plan {

// A key of a config and its value, as written on a command line: {"training.recompute", "\"full\""}.
struct Setting {
  std::string key, value;
};

// Returns the keys in which the layout of a plan differs from the defaults, and recompute.
std::vector<Setting> layout_settings(const LayoutPlan& plan);

// Returns the parallel.lane_block that sums the most lanes inside hosts in the layout of a plan: the data-parallel ranks
// that share a host, as far as they divide the lanes and all such ranks; 1: blocks save nothing. It decides bits, so it is
// for a run that begins.
std::int64_t best_lane_block(const LayoutPlan& plan, const PlannedMachine& machine);

struct LayoutSearch {
  // Layouts that fit, the fastest first; without prices those with the least FLOP and bubble in a row. Among
  // equal times the one that receives the fewest bytes comes first.
  std::vector<LayoutPlan> plans;
  int tried = 0;      // candidates: layouts that can run, with every schedule and recomputation
  int too_large = 0;  // candidates found not to fit
  int priced = 0;     // candidates that were priced
  int slower = 0;     // candidates never priced: enough others are faster
  LayoutPlanner::Counts counts;
};

struct SearchOptions {
  std::size_t layouts_max = 10;  // number of layouts to find
  // Called repeatedly while the search goes on.
  std::function<void(const LayoutSearch&)> progress = {};
};

// Searches every data x pipeline x tensor that the model, the lanes and the ranks allow: the fastest
// schedule, with as little recomputation as fits. gpipe is left out: it takes the time of 1f1b and more
// memory.
LayoutSearch search_layouts(Env& env, const Config& config, int ranks, const PlannedMachine& machine,
                            const SearchOptions& options = {});

// A change that makes a run fit that does not.
struct Remedy {
  std::vector<Setting> settings;  // to change
  int ranks = 1;
  bool new_run = false;  // the change is impossible for a run that has begun: its bits would differ
  LayoutPlan plan;
};
// Returns the first of these that fits: recomputing; another layout of these ranks; smaller microbatches,
// more of them; up to 64 times the ranks. None: nothing fits.
std::optional<Remedy> smallest_remedy(Env& env, const Config& config, int ranks,
                                      const PlannedMachine& machine);

}  // namespace holdfast::plan
