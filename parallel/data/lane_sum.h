// LaneSum: the part of the gradients that one rank owns, summed over the lanes: the memory in which it
// happens and the adds. LaneReduction moves the messages and says when a lane's part is there.
//
// Memory moves no more than it must. A step of one wave (D = L) sums in the owner's own range of the gradient
// buffer: a lane alone is neither copied nor added to anything. Several waves need an accumulator, and so do
// buckets that share the gradient buffer's memory, which share that of what is received, too; the first lane
// of a step is received right into it. The add that finishes a bucket takes the block sums of squares.
#pragma once

#include <span>
#include <vector>

#include "kernels/device.h"
#include "parallel/data/buckets.h"
#include "parallel/data/lanes.h"
#include "runtime/core/memory_plan.h"

namespace holdfast::inline parallel {

class LaneSum {
 public:
  // Reserves the receive staging (of D > 1), the accumulator (of several waves) and the block sums in `plan`;
  // `buckets` and `device` outlive this object. Nothing is allocated later.
  LaneSum(const BucketPlan& buckets, LaneSchedule schedule, int rank, Device& device, MemoryPlan& plan);
  // Once; `gradients` is the flat gradient buffer of this rank's lanes.
  void bind(const MemoryArena& arena, float* gradients);

  // Where this rank's range of a bucket lies, of the lane that `source` runs in a wave: what is received from
  // another rank goes there.
  float* lane(int wave, int source, int bucket) const;

  // Launches sum += that lane. The lanes of a bucket are added in the order of their numbers.
  void add(int wave, int source, int bucket);
  // This rank's range of a bucket that has no state here (BucketPlan::guest, away), summed over the lanes: to
  // be sent or to be filled before add_shadows().
  std::span<float> sum_of(int bucket) const;
  // After all lanes: adds the shadow buckets.
  void add_shadows();

  // Whole when what add() and add_shadows() launched has run; until the next step's first add.
  ReducedGradients reduced() const;
  std::span<const double> square_sums() const { return square_sums_; }

 private:
  void reserve_memory(MemoryPlan& plan);
  void index_segments();
  float* result(int bucket) const;  // where the sum over all lanes ends
  void finish(int bucket, const float* last_term);

  const BucketPlan* buckets_;
  LaneSchedule schedule_;
  int rank_;
  Device* device_;
  int bucket_count_;
  bool in_place_;                               // sums end in the gradient buffer
  std::vector<Segment> segments_;               // owned, in bucket order
  std::vector<std::size_t> first_segment_;      // by bucket, and one more at the end
  std::vector<std::size_t> first_sum_;          // by segment: index into square_sums_
  std::vector<int> shadow_;                     // by bucket: the one that is added to it, or -1
  std::vector<std::uint64_t> staging_offsets_;  // [source * buckets + bucket], elements
  std::vector<float*> sums_;                    // by bucket: where the sum of the lanes so far lies
  MemoryPlan::Slot staging_slot_, accumulator_slot_, square_sums_slot_;
  float* gradients_ = nullptr;
  float* staging_ = nullptr;
  float* accumulator_ = nullptr;
  std::span<double> square_sums_;
};

}  // namespace holdfast::inline parallel
