// Study runs a cluster over many seeds, and its variants over the same ones: with features off, with one number swept, with
// each assumption halved and doubled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "tools/simulate/cluster.h"
#include "tools/simulate/fleet_run.h"

namespace holdfast::launch::fleet {

struct StudyOptions {
  std::uint64_t first_seed = 1, last_seed = 20;
  double days = 30.0;
  bool compares = false;      // features off, sweeps
  bool asks_numbers = false;  // each assumption halved and doubled
};

struct Spread {
  double mean = 0.0, error = 0.0;              // its standard error
  double low = 0.0, median = 0.0, high = 0.0;  // 5, 50 and 95 %
};
Spread spread_of(std::vector<double> values);

// MeanOutcome is what seeds have in common: means over them.
struct MeanOutcome {
  Spread ettr = {};
  std::int64_t seeds = 0;
  double wall_seconds = 0.0;
  std::vector<double> seconds = {};  // by SpanUse
  double narrower_seconds = 0.0;
  std::vector<double> faults = {};  // by kind
  double steps = 0.0, starts = 0.0, in_place = 0.0, restarts = 0.0, from_disk = 0.0, growths = 0.0,
         left = 0.0, spares_used = 0.0, launches_ended = 0.0, excluded = 0.0;
};
MeanOutcome mean_of(const std::vector<FleetOutcome>& outcomes);

struct Variant {
  std::string name = {};  // "no recovery in place"
  std::string how = {};   // "--elastic.in_place=false"
  Cluster cluster = {};
  MeanOutcome mean = {};
};

struct Sweep {
  std::string name = {};  // "spares", "hosts"
  std::string unit = {};
  struct Curve {
    std::string name = {};
    std::vector<double> xs = {}, ettrs = {};
  };
  std::vector<Curve> curves = {};
};

// Doubt is what an assumption is worth: ETTR with half the number, and with twice the number.
struct Doubt {
  std::string key = {};
  double value = 0.0;
  double half_ettr = 0.0, double_ettr = 0.0;
  std::string source = {};  // empty: assumed
};

struct Study {
  Cluster cluster = {};
  StudyOptions options = {};
  std::vector<FleetOutcome> outcomes = {};  // by seed
  MeanOutcome mean = {};
  std::vector<Variant> variants = {};
  std::vector<Sweep> sweeps = {};
  std::vector<Doubt> doubts = {};
};

// Runs all of it, on as many threads as the machine has processors; their number changes no byte. Error: no thread can be had.
Result<Study> run_study(Env& env, const Cluster& cluster, const StudyOptions& options);
// Runs the seeds of one cluster.
Result<std::vector<FleetOutcome>> run_seeds(Env& env, const Cluster& cluster, std::uint64_t first,
                                            std::uint64_t last, double days);

}  // namespace holdfast::launch::fleet
