// LaneSum: computes the sum over all lanes of the gradients that one rank owns. It has the memory for this
// and launches the adds. LaneReduction moves the messages and knows when a lane's gradients have arrived.
//
// Memory is moved no more than needed. A step of one wave (D = L) sums in the owner's own range of the
// gradient buffer: a single lane is neither copied nor added to anything. Several waves need an accumulator.
// So do buckets that share memory of the gradient buffer; these share the receive staging in the same way.
// The first lane of a step is received directly into the accumulator. The lanes of a block (LaneSchedule::block())
// are summed where its first lane lies, and the first block where the sum of all does; a block that goes on in the
// next wave needs an accumulator of its own. The add that finishes a bucket computes the sums of squares by block of
// elements, and digests by which the update finds sums that have changed in memory since.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/elementwise.h"
#include "parallel/data/buckets.h"
#include "parallel/group/mesh.h"
#include "runtime/core/memory_plan.h"
#include "runtime/device/device.h"

namespace holdfast::parallel {

class LaneSum {
 public:
  // Reserves the receive staging (of D > 1), the accumulator (of several waves), that of lane blocks (where they
  // straddle waves), the sums of squares and, if `makes_digests`, the digests in `plan`; `buckets` and `device` outlive this object. Nothing is allocated later.
  LaneSum(const BucketPlan& buckets, LaneSchedule schedule, int rank, Device& device, MemoryPlan& plan,
          bool makes_digests);
  // Binds the memory. It is called once; `gradients` is the flat gradient buffer of this rank's lanes.
  void bind(const MemoryArena& arena, float* gradients);

  // Returns the memory of this rank's range of a bucket, for the lane that `source` runs in a wave. Data from
  // another rank is received there.
  float* lane(int wave, int source, int bucket) const;

  // Launches the add of that lane to the sum. The lanes of a bucket are added in the order of their numbers.
  void add(int wave, int source, int bucket);
  // Returns this rank's range of a bucket whose state is not here (BucketPlan::exported) or whose lanes are
  // not (BucketPlan::imported), summed over the lanes: to be sent, or to be filled before add_tied().
  std::span<float> sum_of(int bucket) const;
  // Adds the tied buckets; it is called after all lanes are added.
  void add_tied();

  // Returns the sums. They are complete when the launches of add() and add_tied() have run, and valid
  // until the next step's first add.
  ReducedGradients reduced() const;
  std::span<const double> square_sums() const { return square_sums_; }

 private:
  void reserve_memory(MemoryPlan& plan, bool makes_digests);
  void index_segments();
  float* result(int bucket) const;  // location of the sum over all lanes
  float* block_result(int bucket) const;
  float* begin_sum(int lane, float* from, int bucket);
  float* take_term(float*& sum, float* term, int bucket) const;
  void launch_add(float* sum, const float* term, int bucket);
  void finish(int bucket, const float* last_term);

  const BucketPlan* buckets_;
  LaneSchedule schedule_;
  int rank_;
  Device* device_;
  int bucket_count_;
  bool in_place_;  // true: the sums are in the gradient buffer
  // By owned segment, in bucket order: where it is in this rank's range of its bucket.
  std::vector<kernels::BlockSegment> places_;
  std::vector<std::size_t> first_segment_;      // by bucket: index into places_, and one more at the end
  std::vector<std::size_t> first_sum_;          // by segment: index into square_sums_
  std::vector<int> tied_;                       // by bucket: the one that is added to it, or -1
  std::vector<std::uint64_t> staging_offsets_;  // [source * buckets + bucket], elements
  std::vector<float*>
      sums_;  // by bucket: location of the sum of the first block's lanes and the blocks so far
  std::vector<float*> block_sums_;  // by bucket: location of the sum of a later block's lanes so far
  MemoryPlan::Slot staging_slot_, accumulator_slot_, square_sums_slot_;
  std::optional<MemoryPlan::Slot> block_accumulator_slot_, digests_slot_;
  float* gradients_ = nullptr;
  float* staging_ = nullptr;
  float* accumulator_ = nullptr;
  float* block_accumulator_ = nullptr;  // null: no block straddles waves
  std::span<double> square_sums_;
  std::uint64_t* digests_ = nullptr;  // by block, as square_sums_; or null
};

}  // namespace holdfast::parallel
