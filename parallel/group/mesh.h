// Mesh: defines which rank holds which part of a run that is parallel in three dimensions. Active ranks have
// coordinates (data, pipeline, tensor); tensor is the innermost axis, then pipeline, and data is the
// outermost; spares wait for a coordinate. The class is pure and equal on all ranks, because it follows from
// what all of them know.
//
// Tensor groups communicate most, in every layer, and stay inside a host. Neighbouring stages of a pipeline
// are next to each other, and so on one host where there is room. Data-parallel replicas communicate least
// and cross hosts. (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters
// Using Megatron-LM", section 3.)
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/core/check.h"
#include "runtime/core/result.h"

namespace holdfast::parallel {

struct MeshShape {
  int data = 1;      // copies of the model
  int pipeline = 1;  // stages of a copy
  int tensor = 1;    // ranks of a stage
  int spares = 0;
  int active() const { return data * pipeline * tensor; }
  int ranks() const { return active() + spares; }
};

struct MeshCoordinate {
  int data = 0;
  int pipeline = 0;
  int tensor = 0;
  bool operator==(const MeshCoordinate&) const = default;
};

struct MeshAxes {
  bool data = false;
  bool pipeline = false;
  bool tensor = false;
};

class Mesh {
 public:
  // Assigns coordinates in the order of ranks; the last ranks are the spares. `host_of_rank`: the name of each
  // rank's host, by rank; empty: all are on one.
  explicit Mesh(const MeshShape& shape, std::span<const std::string> host_of_rank = {});

  // Places every tensor group inside one host. `host_of_rank`: the name of each rank's host, by rank.
  // Coordinates are assigned host by host, hosts in the order of their first ranks: that is the order of
  // ranks where each host has neighbouring ranks and whole tensor groups. Ranks that are left over on a host
  // become spares, and the last ranks are the rest of the spares. Error (config): the hosts have no room for
  // the tensor groups.
  static Result<Mesh> placed(const MeshShape& shape, std::span<const std::string> host_of_rank);

  const MeshShape& shape() const { return shape_; }
  bool is_spare(int rank) const;
  const std::vector<int>& spares() const { return spares_; }  // ascending
  MeshCoordinate coordinate_of(int rank) const;               // `rank` is no spare
  int rank_at(const MeshCoordinate& coordinate) const;
  // Returns numbers of the hosts of ranks, equal for ranks on one host, in the order of `ranks`.
  std::vector<int> host_numbers(std::span<const int> ranks) const;

  // Returns the ranks, `rank` among them, whose coordinates differ from that of `rank` only along these axes,
  // in the order of their coordinates. `rank` is no spare.
  std::vector<int> group(int rank, MeshAxes axes) const;
  // Returns the ranks that hold the slices of the same weights and compute the same microbatches.
  std::vector<int> tensor_group(int rank) const { return group(rank, {.tensor = true}); }
  // Returns the stages in order: activations go to the next, gradients to the previous one.
  std::vector<int> pipeline_line(int rank) const { return group(rank, {.pipeline = true}); }
  // Returns the ranks that hold the same weights: they reduce gradients and share the optimizer state.
  std::vector<int> data_group(int rank) const { return group(rank, {.data = true}); }
  // Returns all ranks that hold a part of this copy of the model.
  std::vector<int> replica(int rank) const { return group(rank, {.pipeline = true, .tensor = true}); }

 private:
  Mesh(const MeshShape& shape, std::vector<int> active_ranks, std::vector<int> hosts);

  MeshShape shape_;
  std::vector<int> active_ranks_;   // [(data * pipeline degree + pipeline) * tensor degree + tensor]
  std::vector<int> index_of_rank_;  // -1: a spare
  std::vector<int> spares_;
  std::vector<int> hosts_;  // by rank; empty: all are on one
};

// Returns a number for the host of each rank, from 0 on in the order of their first ranks.
std::vector<int> numbers_of_hosts(std::span<const std::string> host_of_rank);

// TensorShare names the slices of the split tensors that one rank of a tensor group holds. `slices` is the
// run's number of tensor lanes: how every split tensor is cut, whatever the number of ranks; a rank holds
// `count` neighbouring ones, and so do its peers.
struct TensorShare {
  int slices = 1;
  int first = 0;
  int count = 1;
  int ranks() const { return slices / count; }
  int rank() const { return first / count; }
};

inline TensorShare share_of(int slices, int rank, int ranks) {
  return {.slices = slices, .first = slices / ranks * rank, .count = slices / ranks};
}
inline TensorShare all_slices(int slices) {
  return {.slices = slices, .first = 0, .count = slices};
}

// Lanes: define the logical data-parallel width of a run (DESIGN: "Lanes: why the bits do not depend on the
// number of ranks"). With D ranks and L lanes, wave w runs lanes w*D .. w*D+D-1, one on each rank; the last
// wave may leave ranks without a lane. Blocks of `block` neighbouring lanes, which divides the lanes, are
// summed in lane order, and their sums in block order, whatever D is: a block may begin in one wave and end in
// another. Blocks of one lane, or one block of all, are the flat sum in lane order. The functions are pure.
class LaneSchedule {
 public:
  LaneSchedule(int lanes, int ranks, int block = 1) : lanes_(lanes), ranks_(ranks), block_(block) {
    HF_CHECK(1 <= ranks && ranks <= lanes && 1 <= block && lanes % block == 0);
  }
  int lanes() const { return lanes_; }
  int ranks() const { return ranks_; }
  int block() const { return block_; }
  int waves() const { return (lanes_ + ranks_ - 1) / ranks_; }
  int lane_of(int wave, int rank) const {  // -1: this rank has no lane in this wave
    const int lane = wave * ranks_ + rank;
    return lane < lanes_ ? lane : -1;
  }
  int lanes_in_wave(int wave) const { return wave + 1 < waves() ? ranks_ : lanes_ - wave * ranks_; }
  // Returns whether all lanes from this one to the end of its block are in the wave of this one.
  bool block_ends_in_wave_of(int lane) const {
    const int end = (lane / block_ + 1) * block_;
    return (end - 1) / ranks_ == lane / ranks_;
  }
  // Returns whether the sum of a block is carried from one wave to the next beside the sum of the blocks before
  // it. The first block has none before it.
  bool carries_blocks() const {
    for (int lane = ranks_; lane < lanes_; lane += ranks_)
      if (lane > block_ && lane % block_ != 0) return true;
    return false;
  }

 private:
  int lanes_;
  int ranks_;
  int block_;
};

}  // namespace holdfast::parallel
