// LaneSum: computes the sum over all lanes of the gradients that one rank owns, and the sums of blocks of lanes
// that it makes for others (LaneExchange). It has the memory for this and launches the adds. LaneReduction moves
// the messages and knows when gradients have arrived.
//
// Memory is moved no more than needed. A step of one wave (D = L) sums in the owner's own range of the
// gradient buffer: a single lane is neither copied nor added to anything. Several waves need an accumulator.
// So do buckets that share memory of the gradient buffer; these share the receive staging in the same way, as do those of
// a model whose gradients would make it too large (staging_places()).
// The first lane of a step is received directly into the accumulator. The lanes of a block (LaneSchedule::block())
// are summed where its first lane lies, and the first block where the sum of all does; a block that goes on in the
// next wave needs an accumulator of its own. A block that is summed for others lies in the gradient buffer, where this
// rank's own lane is; then no sum of all lanes does, because a part of the same memory may still be sent. The add that finishes a bucket computes the sums of squares by block of
// elements, and digests by which the update finds sums that have changed in memory since.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/elementwise.h"
#include "parallel/data/buckets.h"
#include "parallel/data/lane_exchange.h"
#include "runtime/core/memory_plan.h"
#include "runtime/device/device.h"

namespace holdfast::parallel {

// Gradients of a lane for which the receive staging has a place for each bucket: that of a larger model has fewer. It
// takes (D - 1) / D of them.
inline constexpr std::uint64_t staging_bytes_max = std::uint64_t{2} << 30;

// Returns how many buckets have a place in the receive staging: bucket b is in place b modulo this number. Where
// buckets share memory of the gradient buffer it is their number of slots, else as many as fit in `bytes`, and at least
// four: the head and the embedding write two gradients at once, while others are being sent.
int staging_places(const BucketPlan& buckets, std::uint64_t bytes);

class LaneSum {
 public:
  // Reserves the receive staging (of D > 1), the accumulator (of several waves), that of lane blocks (where
  // they straddle waves), the sums of squares and, if `makes_digests`, the digests in `plan`. `places`:
  // staging_places(). `buckets`, `exchange` and `device` outlive this object. Nothing is allocated later.
  LaneSum(const BucketPlan& buckets, const LaneExchange& exchange, Device& device, MemoryPlan& plan,
          bool makes_digests, int places);
  // Binds the memory. It is called once; `gradients` is the flat gradient buffer of this rank's lanes.
  void bind(const MemoryArena& arena, float* gradients);

  // Returns the memory of this rank's range of a bucket, for the part that `source` sends in a wave. Data from
  // another rank is received there.
  float* part(int wave, int source, int bucket) const;
  // Returns that of the range that this rank sums for others, for the lane of a rank of its block.
  float* lane_of_block(int wave, int member, int bucket) const;

  // Launches the add of a part to the sum. The parts of a bucket are added in the order of their lanes.
  void add(int wave, const LanePart& part, int bucket);
  // Launches the add of a lane to the sum of its block for others, which lies in the gradient buffer when all its
  // lanes are added, in the order of their ranks.
  void add_to_block(int wave, int member, int bucket);
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
  void reserve_memory(MemoryPlan& plan, bool makes_digests, int places);
  void reserve_staging(MemoryPlan& plan, int places);
  void index_segments();
  float* result(int bucket) const;  // location of the sum over all lanes
  float* block_result(int bucket) const;
  float* begin_sum(int lane, float* from, int bucket);
  void launch_add(float* sum, const float* term, std::uint64_t count);
  void finish(int bucket, const float* last_term);

  const BucketPlan* buckets_;
  const LaneExchange* exchange_;
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
  int first_source_;                            // rank that sends the first part of the step
  std::vector<std::uint64_t> staging_offsets_;  // [source * buckets + bucket], elements
  std::vector<std::uint64_t> block_offsets_;    // [other member of its block * buckets + bucket], elements
  // By bucket, the location of a sum so far: of the first block's lanes and the blocks after it; of a later
  // block's lanes; of the block that this rank sums for other owners.
  std::vector<float*> sums_, block_sums_, sums_for_others_;
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
