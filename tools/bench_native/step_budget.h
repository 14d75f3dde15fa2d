// The budget of a training step: what its ops took, by op and shape, and what they would take at their
// limits.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "kernels/cost.h"
#include "runtime/core/json.h"
#include "runtime/measure/host_limits.h"
#include "runtime/measure/op_text.h"
#include "runtime/measure/op_timer.h"

namespace holdfast::bench {

// All calls with one key (runtime/measure/call_key.h) in a step.
struct BudgetRow {
  OpTimer::Record example;
  std::string shape;  // call_text()
  OpCost cost;        // of one op
  std::int64_t calls = 0;
  double seconds = 0.0;        // of all calls of a step; median over the steps
  double limit_seconds = 0.0;  // of all calls
};

struct StepBudget {
  double step_seconds = 0.0;  // median
  double idle_seconds = 0.0;  // step minus the sum of its ops; median
  std::vector<BudgetRow> rows = {};
  std::string product_limit = {};  // limit that every matrix product is compared with

  struct Sum {
    std::int64_t calls = 0;
    double seconds = 0.0, limit_seconds = 0.0;
  };
  Sum of(OpClass op_class) const;
  Sum of(OpId id) const;
  // Returns the time that a fast step should stay near: every matrix product at its limit, and the bytes of
  // AdamW at the rate of memory.
  double bound_seconds() const;
};

// Makes the budget of measured steps from the records and the wall time of each. Steps have the same ops.
StepBudget make_budget(const std::vector<std::vector<OpTimer::Record>>& steps,
                       const std::vector<double>& step_seconds);
// Measures the limits; a limit that is known already gets the better of the two. The device is idle.
Result<void> measure_limits(StepBudget& budget, Limits& limits);

std::string budget_text(const StepBudget& budget);
Json budget_json(const StepBudget& budget);

}  // namespace holdfast::bench
