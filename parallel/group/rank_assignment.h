// RankAssignment: decides which ranks compute, and with which coordinates. It makes as many whole copies of
// the model as there are ranks for, up to a requested number; a rank without a coordinate is a spare. The
// functions are pure, and their results are equal on all ranks.
//
// After a death the assignment is made anew from the ranks that are left. So a spare takes a dead rank's
// coordinate, the other ranks of a broken copy become spares, and the rest of several broken copies makes a
// whole one.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/group/mesh.h"
#include "runtime/core/result.h"

namespace holdfast::parallel {

struct AssignmentRequest {
  int data_max = 1;  // copies of the model
  int data_min = 1;  // with fewer copies the run ends
  int pipeline = 1;
  int tensor = 1;
};

struct RankAssignment {
  MeshShape shape;                // without spares
  std::vector<int> active_ranks;  // [(data * pipeline degree + pipeline) * tensor degree + tensor]
  std::vector<int> spares;        // ascending
  int leader() const { return active_ranks.front(); }  // lowest coordinate; writes for all ranks
  int coordinate_of(int rank) const;                   // index in active_ranks; -1: a spare
};

// Assigns coordinates. Every tensor group is inside one host (Mesh::placed). `host_of_rank`: the name of each
// rank's host, by rank. Returns ExitCode::communication when there is no room for `data_min` copies.
Result<RankAssignment> assign_ranks(const AssignmentRequest& request,
                                    std::span<const std::string> host_of_rank);
// Returns the assignment of a mesh with spares, with which a run starts.
RankAssignment assignment_of(const Mesh& mesh);

}  // namespace holdfast::parallel
