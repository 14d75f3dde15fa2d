// Mesh: which rank holds which part of a run that is parallel in three dimensions. The ranks that compute
// have coordinates (data, pipeline, tensor); tensor is the innermost axis, then pipeline, data is the
// outermost; spares wait for a coordinate. Pure; equal on all ranks, because it follows from what all of them
// know.
//
// Tensor groups talk most, in every layer, and stay inside a host; neighbouring stages of a pipeline lie side
// by side and so on one host where there is room; data-parallel replicas talk least and cross hosts.
// (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
// section 3.)
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::inline parallel {

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
  // Coordinates in the order of ranks, as on one host; the last ranks are the spares.
  explicit Mesh(const MeshShape& shape);

  // Every tensor group inside one host. `host_of_rank`: the name of each rank's host, by rank. Coordinates
  // are taken host by host, hosts in the order of their first ranks: that is the order of ranks where each
  // host has neighbouring ranks and whole tensor groups. Ranks that are left over on a host become spares,
  // the rest of the spares are the last ranks. Error (config): the hosts have no room for the tensor groups.
  static Result<Mesh> placed(const MeshShape& shape, std::span<const std::string> host_of_rank);

  const MeshShape& shape() const { return shape_; }
  bool is_spare(int rank) const;
  const std::vector<int>& spares() const { return spares_; }  // ascending
  MeshCoordinate coordinate_of(int rank) const;               // of no spare
  int rank_at(const MeshCoordinate& coordinate) const;

  // The ranks, `rank` among them, whose coordinates differ from that of `rank` in no other axes than these;
  // in the order of their coordinates. `rank` is no spare.
  std::vector<int> group(int rank, MeshAxes axes) const;
  // Hold the slices of the same weights of the same microbatches.
  std::vector<int> tensor_group(int rank) const { return group(rank, {.tensor = true}); }
  // The stages in order: activations go to the next, gradients to the one before.
  std::vector<int> pipeline_line(int rank) const { return group(rank, {.pipeline = true}); }
  // Hold the same weights: they reduce gradients and share the optimizer state.
  std::vector<int> data_group(int rank) const { return group(rank, {.data = true}); }
  // All that hold something of this stage.
  std::vector<int> stage_group(int rank) const { return group(rank, {.data = true, .tensor = true}); }
  // All that hold something of this copy of the model.
  std::vector<int> replica(int rank) const { return group(rank, {.pipeline = true, .tensor = true}); }

 private:
  Mesh(const MeshShape& shape, std::vector<int> active_ranks);

  MeshShape shape_;
  std::vector<int> active_ranks_;   // [(data * pipeline degree + pipeline) * tensor degree + tensor]
  std::vector<int> index_of_rank_;  // -1: a spare
  std::vector<int> spares_;
};

}  // namespace holdfast::inline parallel
