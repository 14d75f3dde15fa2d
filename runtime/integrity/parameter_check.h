// The check of parameters: whether the ranks that must hold the same parameters do. At the steps of lane audits
// (lane_check.h) the device of every rank digests the parameters that the rank has computed with, and the
// rank adds a term to the vote (CheckVotes::parameters). The sum of all terms is 0 where all agree.
//
// A tensor that is sliced over a tensor group is the same at one stage and slice of all copies of the model; what is
// replicated is the same on all ranks of a stage. Frozen tensors never change, so each rank also compares its copy
// of them with what that was in the first step that it made, because no gather heals them. (ShardedOptimizer
// compares the weights that a rank owns.)
//
// Where they do not, copies of trained parameters are made those of their owners again, whose state has been compared
// with the digests of its last update before, and the step is computed again. The rank whose copy that changed is the
// suspect. Frozen tensors have changed at some step since they were last compared, so the run goes back to then.
//
// Threads: one. Nothing is allocated by launch(), term() and remember().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/digest.h"
#include "parallel/data/buckets.h"
#include "parallel/group/mesh.h"
#include "runtime/core/digest.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/result.h"
#include "runtime/core/tensor.h"
#include "runtime/device/device.h"
#include "runtime/integrity/check_record.h"

namespace holdfast::integrity {

// Parameters of a rank by who else must hold them, and whether updates change them.
enum class ParameterSet : std::uint8_t { sliced, replicated, frozen_sliced, frozen_replicated };
inline constexpr std::size_t parameter_set_count = 4;
constexpr bool is_frozen(ParameterSet set) {
  return set >= ParameterSet::frozen_sliced;
}
constexpr bool is_replicated(ParameterSet set) {
  return set == ParameterSet::replicated || set == ParameterSet::frozen_replicated;
}

// AgreementPlace is the place of a rank among those that must hold a set of parameters alike.
struct AgreementPlace {
  std::uint64_t group = 0;  // another one for each set, stage and, of sliced parameters, slice
  int member = 0, members = 1;
};
AgreementPlace agreement_place(ParameterSet set, const MeshShape& shape, const MeshCoordinate& coordinate);

// Returns what a member adds for the digest of what it holds: member 0 takes off the sum of the odd weights of all
// others times its digest, each other one adds its weight times its own. The terms of a group in which all digests
// are the same add up to 0; others do so with a chance of about 2^-64, and a single flipped bit never does on
// members other than 0. Pure.
Digest agreement_term(const AgreementPlace& place, const Digest& digest);

// HeldBucket is what a rank holds of one bucket.
struct HeldBucket {
  std::array<std::string, 2> digests = {};  // hexadecimal; of the sliced and of the replicated tensors
  std::array<std::string, 2> tensors = {};  // their names, the first ones; empty: there are none

  static void visit_fields(auto& self, auto&& visit) {
    visit("digests", self.digests);
    visit("tensors", self.tensors);
  }
};

class ParameterDigests {
 public:
  struct Parts {
    const BucketPlan& buckets;
    Device& device;
    const MeshShape& shape;
    const MeshCoordinate& coordinate;
    DType dtype = DType::fp32;
  };
  // Reserves its memory in `plan`. What `parts` refers to outlives this object.
  ParameterDigests(const Parts& parts, MemoryPlan& plan);
  // Binds the memory, once.
  void bind(const MemoryArena& arena, const std::byte* parameters);

  // Launches the digests of all parameters. They have arrived (ParameterGather::finish()).
  void launch();
  // Does so on a device that plans its kernels, without touching memory.
  void launch_all_kinds();

  // The device has run what launch() launched before any of these is called.

  // Returns what this rank adds to the vote.
  Digest term() const;
  Digest total(ParameterSet set) const;
  // Returns what this rank holds of each bucket, in the order of the buckets.
  std::vector<HeldBucket> held() const;
  // Names the frozen tensors that are not what they were, the first ones; empty: all are.
  std::string changed_frozen_tensors() const;

  // Returns whether there are frozen tensors of which it is not remembered yet what they were.
  bool must_remember() const { return has_frozen_ && remembered_.empty(); }
  bool has_frozen() const { return has_frozen_; }
  void remember();

  // Notes that all ranks held the same parameters, and frozen ones those of the beginning, up to this step.
  void note_verified_step(std::uint64_t step) { verified_step_ = step; }
  std::optional<std::uint64_t> verified_step() const { return verified_step_; }

 private:
  const DigestWords& words(std::size_t bucket, bool replicated) const {
    return words_[2 * bucket + (replicated ? 1 : 0)];
  }
  bool has_parameters(std::size_t bucket) const { return parts_.buckets.buckets()[bucket].tied_to < 0; }
  bool is_frozen_bucket(std::size_t bucket) const {
    return has_parameters(bucket) && parts_.buckets.buckets()[bucket].is_frozen();
  }
  Digest frozen_change() const;

  Parts parts_;
  MemoryPlan::Slot slot_;
  std::size_t count_ = 0;  // of words: two for each bucket
  bool has_frozen_ = false;
  DigestWords* words_ = nullptr;
  const std::byte* parameters_ = nullptr;
  std::vector<DigestWords> remembered_;  // as words_; empty: nothing yet
  std::optional<std::uint64_t> verified_step_;
};

// HeldParameters says what one rank holds.
struct HeldParameters {
  std::array<std::string, parameter_set_count> sets = {};  // digests by ParameterSet
  bool frozen_changed = false;                             // its frozen tensors are not what they were

  static void visit_fields(auto& self, auto&& visit) {
    visit("sets", self.sets);
    visit("frozen_changed", self.frozen_changed);
  }
};
using ParameterRecords = CheckRecords<HeldParameters>;

// ParameterSuspects says who differs in the groups whose members must hold the same.
struct ParameterSuspects {
  std::vector<int> ranks = {};     // of the communicator, ascending; empty: it is not known
  std::vector<int> affected = {};  // all ranks of the groups that do not agree, ascending
  bool in_frozen = false;          // some of what differs is frozen
};

// Attributes it to a rank whose frozen tensors have changed, or one that a majority contradicts. Of two, or of groups
// that have no majority, it is not known. Pure.
ParameterSuspects attribute(const ParameterRecords& records);

// Checks a step at which ranks that must hold the same parameters do not. All ranks call it together, before the
// update. Errors: those of StepAccess::attempt_again().
Result<CheckedStep> check_parameters(const StepAccess& step, const Attempt& first);

}  // namespace holdfast::integrity
