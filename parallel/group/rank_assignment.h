// RankAssignment: which of the ranks that are there compute, and what. As many whole copies of the model as
// there are ranks for, up to a number that is wanted; who has no coordinate is a spare. Pure; equal on all
// ranks.
//
// After a death it is decided anew from the ranks that are left. So a spare takes a dead rank's place, the
// other ranks of a broken copy become spares, and what is left of several broken copies makes a whole one.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/group/mesh.h"
#include "runtime/core/result.h"

namespace holdfast::inline parallel {

struct AssignmentRequest {
  int data_max = 1;  // copies of the model
  int data_min = 1;  // with fewer the run does not go on
  int pipeline = 1;
  int tensor = 1;
};

struct RankAssignment {
  MeshShape shape;                // without spares
  std::vector<int> active_ranks;  // [(data * pipeline degree + pipeline) * tensor degree + tensor]
  std::vector<int> spares;        // ascending
  int leader() const { return active_ranks.front(); }  // writes for all
  int coordinate_of(int rank) const;                   // -1: a spare
};

// Every tensor group is inside one host (Mesh::placed). `host_of_rank`: the name of each rank's host, by
// rank. ExitCode::communication when there is no room for `data_min` copies.
Result<RankAssignment> assign_ranks(const AssignmentRequest& request,
                                    std::span<const std::string> host_of_rank);
// Of a mesh with spares, as a run starts with it.
RankAssignment assignment_of(const Mesh& mesh);

}  // namespace holdfast::inline parallel
