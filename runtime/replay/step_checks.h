// Looks at every result of every op of a step on one rank (kernels/op_digests.h): which is the first that is
// not finite, and whether two computations of the step had the same results.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/device.h"
#include "kernels/op_digests.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/result.h"

namespace holdfast::inline replay {

// CheckedOp names a result of an op.
struct CheckedOp {
  std::int64_t order = 0;       // number of the op in the step on its rank, from 0
  std::string op = {};          // name of its kind
  int output = 0;               // index among its results
  std::uint64_t nonfinite = 0;  // number of elements that are not finite
  double growth = 0.0;  // its largest magnitude, divided by that of all results before it; 0: not larger

  static void visit_fields(auto& self, auto&& visit) {
    visit("order", self.order);
    visit("op", self.op);
    visit("output", self.output);
    visit("nonfinite", self.nonfinite);
    visit("growth", self.growth);
  }
};

struct RankChecks {
  std::int64_t ops = 0, results = 0;
  std::int64_t left_out = 0;  // results at the end of the step for which there was no memory
  // Digest over the digests of all results, in hex. It is equal where the same ops had the same results: in
  // the same layout, with the same kernels.
  std::string digest = {};
  std::optional<CheckedOp> first_nonfinite = {};  // none: all results are finite
  std::optional<CheckedOp> largest_growth = {};   // none: no result is larger than all before it

  static void visit_fields(auto& self, auto&& visit) {
    visit("ops", self.ops);
    visit("results", self.results);
    visit("left_out", self.left_out);
    visit("digest", self.digest);
    visit("first_nonfinite", self.first_nonfinite);
    visit("largest_growth", self.largest_growth);
  }
};

// StepChecks inspects a device that outlives it. Threads: that which launches ops.
class StepChecks {
 public:
  // Allocates the memory of the digests. Errors: those of Device::allocate().
  static Result<std::unique_ptr<StepChecks>> make(Device& device);
  ~StepChecks() { end(); }
  StepChecks(const StepChecks&) = delete;
  StepChecks& operator=(const StepChecks&) = delete;

  // Inspects all ops that are launched until end(); what was inspected before is forgotten. Call it also
  // around the planning of the step's kernels, so that those of the digests are planned, too.
  void begin();
  void end();
  // Waits for the device, and returns what was found between begin() and end().
  RankChecks result();

 private:
  StepChecks(Device& device, MemoryArena arena, MemoryPlan::Slot slot);

  Device& device_;
  MemoryArena arena_;
  OpDigests digests_;
};

}  // namespace holdfast::inline replay
