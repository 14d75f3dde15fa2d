// Buckets: define how the flat parameter and gradient buffers are cut for communication, and which blocks of
// the optimizer state each rank owns. The functions are pure; they depend only on the tensor list and the
// number of ranks.
//
// Parameters lie one after another in one flat buffer (each tensor starts at a multiple of 16 elements),
// gradients in another of the same order. A bucket is a run of neighbouring tensors whose gradients become
// ready together; buckets are numbered in the order in which backward finishes them. A rank owns a contiguous
// run of each bucket's blocks: [n*p/D, n*(p+1)/D) of its n blocks, where p is its position among the D ranks.
// Positions are in the order of (r mod B, r) of ranks r, where B is the size of a lane block: each rank of a
// block then stands among as many others, for whom it sums the block (LaneExchange).
//
// A tied weight has two gradients: that of the bucket of its first use and that of a *tied* bucket with the
// same tensors and the same ownership, whose reduced gradient is added once to the first one's. Where a
// pipeline has the two uses on two stages, the stage of the first use holds the state. The other stage has
// the bucket as an *exported* one: it reduces the gradient and sends the sum to the first stage; there it
// arrives in a tied bucket that is *imported*, which no lane of that stage fills. The blocks of both are
// owned by the same data-parallel ranks.
//
// Gradients may share memory: bucket b then lies in slot b modulo the number of slots, and is overwritten
// when the next bucket of that slot is written (LaneReduction says when this is allowed).
//
// A *frozen* tensor keeps its value: it has no gradient, no moments and no accumulator, and its bucket takes
// no part in lane reductions and updates. Its weight is owned, saved and published like any other.
//
// A rank has slices of each tensor that tensor lanes cut; every slice is a tensor of its own here. Other
// tensors are the same on all ranks of a tensor group, which compute the same gradients for them: they are
// *replicated*.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/shard_spec.h"

namespace holdfast::parallel {

struct BucketTensor {
  std::string name;
  std::vector<std::uint64_t> shape;              // shape of the tensor, or of its one slice on this rank
  std::vector<std::uint64_t> global_shape = {};  // shape of the whole tensor; empty: the same as `shape`
  int slice = 0, slices = 1;
  bool weight_decay = false;  // where optimizer.weight_decay_groups says nothing else
  bool is_frozen = false;     // the same for all tensors of a bucket
  std::uint64_t parameter_offset =
      0;  // elements into the flat parameters (of a tied bucket: the real tensor's)
  std::uint64_t gradient_offset = 0;  // elements into the flat gradient buffer
  std::uint64_t elements() const;
  bool is_replicated() const { return slices == 1; }  // the same on all ranks of a tensor group
};

// Returns the spec of all blocks of the tensor, as saved state of `kind` ("weight", "moment1", ...) and that type.
ShardSpec shard_spec_of(const BucketTensor& tensor, const std::string& kind, DType dtype = DType::fp32);

struct Bucket {
  std::vector<BucketTensor> tensors;
  int tied_to = -1;          // index of the bucket whose gradient this one is added to
  bool is_exported = false;  // another stage holds its state
  bool is_imported = false;  // lanes of another stage fill it; after all that lanes of this stage fill
  bool is_frozen() const { return tensors.front().is_frozen; }  // these come last in the list
};

// Part of one tensor that one rank owns: whole blocks, contiguous.
struct Segment {
  int bucket = 0;
  int tensor = 0;                 // index into the bucket's tensors
  std::uint64_t first_block = 0;  // inside the tensor
  std::uint64_t block_count = 0;
  std::uint64_t elements = 0;
  std::uint64_t parameter_offset = 0;  // elements into the flat parameter buffer
  std::uint64_t gradient_offset = 0;   // elements into the flat gradient buffer
  std::uint64_t shard_offset = 0;  // elements into the owner's shard buffers (master, moments, accumulator)
};

// Location of an owner's reduced gradients: a separate shard buffer, or their range in the flat gradient
// buffer.
struct ReducedGradients {
  float* values = nullptr;
  bool in_place = false;
  // Digests by block of BucketPlan::segments(), in their order, in device memory (runtime/core/block_digest.h); null: there
  // are none.
  const std::uint64_t* digests = nullptr;
  float* of(const Segment& segment) const {
    return values + (in_place ? segment.gradient_offset : segment.shard_offset);
  }
};

struct ElementRange {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t size() const { return end - begin; }
};

class BucketPlan {
 public:
  // Assigns the offsets. `buckets` are in backward order, with shapes, decay flags and tied_to set.
  // Parameters lie in reverse bucket order (so in forward order), gradients likewise, with shadows after
  // them. `gradient_slots`: number of slots that the gradients of all buckets share; 0: each has its own.
  // `lane_block`: B of the positions; with 1 they are the ranks.
  BucketPlan(std::vector<Bucket> buckets, int ranks, int gradient_slots = 0, int lane_block = 1);

  int ranks() const { return ranks_; }
  int position_of(int rank) const { return positions_[static_cast<std::size_t>(rank)]; }
  int rank_at(int position) const { return ranks_by_position_[static_cast<std::size_t>(position)]; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const BucketTensor& tensor(const Segment& segment) const {
    return buckets_[static_cast<std::size_t>(segment.bucket)]
        .tensors[static_cast<std::size_t>(segment.tensor)];
  }
  // Return the size of the flat buffers in elements, padding included.
  std::uint64_t parameter_elements() const { return parameter_elements_; }
  std::uint64_t gradient_elements() const { return gradient_elements_; }
  // Returns the number of gradient slots, which is that of the local buckets where each has its own.
  int gradient_slots() const { return gradient_slots_; }
  bool shares_gradient_memory() const { return gradient_slots_ < local_count_; }
  // Returns the number of buckets whose gradients the lanes of this stage compute: the first of the list. The
  // others are imported or frozen.
  int local_count() const { return local_count_; }
  int imported() const { return imported_; }  // index of the imported bucket, or -1
  int exported() const { return exported_; }  // index of the exported bucket, or -1
  bool is_frozen(int bucket) const { return buckets_[static_cast<std::size_t>(bucket)].is_frozen(); }

  // Return the contiguous flat range that holds the rank's blocks of a bucket (padding between tensors
  // included). A frozen bucket has no gradients.
  ElementRange parameter_range(int bucket, int rank) const;
  ElementRange gradient_range(int bucket, int rank) const;
  // Returns the offset of that range in the rank's shard buffers (a multiple of 16). A tied or an exported
  // bucket has a range of its own in the accumulator, after all others.
  std::uint64_t shard_offset(int bucket, int rank) const;
  std::uint64_t shard_elements(
      int rank) const;  // of moments and their master weights: no tied and exported ones
  std::uint64_t master_elements(int rank) const;       // of master weights alone, frozen ones included
  std::uint64_t accumulator_elements(int rank) const;  // shadows and guests included

  // Returns the rank's segments of all buckets whose state is here and is trained, in bucket then tensor
  // order.
  std::vector<Segment> segments(int rank) const { return segments_of(rank, /*frozen=*/false); }
  std::vector<Segment> frozen_segments(int rank) const { return segments_of(rank, /*frozen=*/true); }
  // Returns the segments as ShardSpecs of `kind`, in the same order; of "weight" then the frozen ones.
  std::vector<ShardSpec> shard_specs(int rank, const std::string& kind, DType dtype = DType::fp32) const;

 private:
  struct ShardRange {  // a rank's range, in elements from the start of the bucket's first tensor
    ElementRange range;
    std::uint64_t shard_offset = 0;
  };
  void assign_parameter_offsets();
  void assign_gradient_offsets();
  void share_gradient_memory();
  void assign_shard_ranges(int rank);
  const ShardRange& shard_range(int bucket, int rank) const;
  std::vector<Segment> segments_of(int rank, bool frozen) const;

  std::vector<Bucket> buckets_;
  int ranks_;
  std::vector<int> ranks_by_position_, positions_;
  std::vector<ShardRange> shard_ranges_;  // [rank * buckets + bucket]
  std::vector<std::uint64_t> shard_elements_, master_elements_, accumulator_elements_;  // by rank
  std::uint64_t parameter_elements_ = 0;
  std::uint64_t gradient_elements_ = 0;
  int local_count_ = 0, imported_ = -1, exported_ = -1;
  int gradient_slots_ = 0;
};

}  // namespace holdfast::parallel
