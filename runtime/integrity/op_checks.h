// Looks at every result of every op of a step on one rank (runtime/device/op_digests.h): which is the first that is
// not finite, and whether two computations of the step had the same results. `holdfast replay --checks` does it
// for a whole step, and a run for a second attempt at a step whose numbers are not finite.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/memory_plan.h"
#include "runtime/core/result.h"
#include "runtime/device/device.h"
#include "runtime/device/op_digests.h"

namespace holdfast::integrity {

// CheckedOp names a result of an op.
struct CheckedOp {
  std::int64_t order = 0;       // number of the op in the step on its rank, from 0
  std::string op = {};          // name of its kind
  OpScope scope = {};           // what it was launched for
  std::int64_t place = 0;       // number of results of the same scope before it
  int output = 0;               // index among its results
  std::uint64_t nonfinite = 0;  // number of elements that are not finite
  double growth = 0.0;  // its largest magnitude, divided by that of all results before it; 0: not larger

  static void visit_fields(auto& self, auto&& visit) {
    visit("order", self.order);
    visit("op", self.op);
    visit("scope", self.scope);
    visit("place", self.place);
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
  // First in the order of is_computed_before(); none: all results are finite.
  std::optional<CheckedOp> first_nonfinite = {};
  std::optional<CheckedOp> largest_growth = {};  // none: no result is larger than all before it

  static void visit_fields(auto& self, auto&& visit) {
    visit("ops", self.ops);
    visit("results", self.results);
    visit("left_out", self.left_out);
    visit("digest", self.digest);
    visit("first_nonfinite", self.first_nonfinite);
    visit("largest_growth", self.largest_growth);
  }
};

// Returns whether `one` comes before `other` in the computation by one rank alone. They may be of different
// ranks; those of a tensor group that compute slices of the same results launch nearly the same ops.
bool is_computed_before(const CheckedOp& one, const CheckedOp& other);

// Returns a clause such as "rmsnorm_forward in layers.0.attention, in the forward of lane 2, microbatch 0".
std::string describe(const CheckedOp& op);

// Returns the name of a result, which is one of `results`.
CheckedOp checked_op(const OpDigest& digest, std::span<const OpDigest> results, double growth = 0.0);

// StepChecks inspects a device that outlives it. Threads: that which launches ops.
class StepChecks {
 public:
  // Plans the kernels of the digests, on a device that is planning.
  static void plan(Device& device);
  // Allocates the memory of the digests, 8 MiB that the host sees. Errors: those of Device::allocate().
  static Result<std::unique_ptr<StepChecks>> make(Device& device);
  ~StepChecks() { end(); }
  StepChecks(const StepChecks&) = delete;
  StepChecks& operator=(const StepChecks&) = delete;

  // Inspects all ops that are launched until end(), instead of the device's inspector, which goes on after
  // it. What was inspected before is forgotten.
  void begin();
  void end();
  // Waits for the device, and returns what was found between begin() and end().
  RankChecks result();
  // Returns the digests of all results in the order of their ops, likewise.
  std::vector<OpDigest> results();

 private:
  StepChecks(Device& device, MemoryArena arena, MemoryPlan::Slot slot);

  Device& device_;
  MemoryArena arena_;
  OpDigests digests_;
  bool inspects_ = false;
  OpInspector* other_ = nullptr;  // that of the device before begin()
};

}  // namespace holdfast::integrity
