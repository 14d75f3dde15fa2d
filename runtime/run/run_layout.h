// Derives from the resolved config of a run which ranks it needs and which coordinate each of them has. Pure:
// the trainer, a planner and the launcher get the same answers, without a model or a device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/group/layout.h"
#include "parallel/group/mesh.h"
#include "parallel/group/rank_assignment.h"
#include "runtime/config/config.h"
#include "runtime/core/result.h"

namespace holdfast::run {

// Checks that `ranks` ranks, `spares` of them spares, can run the config; ExitCode::config with every rule
// that is broken (parallel/group/layout.h). The other functions require a layout that passes.
Result<void> check_layout(const Config& config, int ranks, std::int64_t spares = 0);
// Returns the mesh of ranks that all compute and are all on one host.
Mesh mesh_of(const Config& config, int ranks);
// Returns the mesh of ranks, elastic.spares among them, whose hosts have these names: Mesh::placed(), so
// every tensor group is inside a host. The coordinate of a rank decides what it computes and holds, never a
// bit of the run. ExitCode::config when the hosts have no room for the tensor groups.
Result<Mesh> mesh_of(const Config& config, std::span<const std::string> host_of_rank);

// Returns the assignment that a run which was started with `launched_ranks` ranks asks for, however many are
// left.
AssignmentRequest assignment_request(const Config& config, int launched_ranks);

// Returns, by rank, the rank that stores the replicas of its RAM snapshots (parallel/group/buddies.h); empty
// if there are no replicas. With checkpoint.replicas = "auto" there are replicas if the buddy of some rank is
// on another host.
std::vector<int> replica_buddies(const Config& config, const Mesh& mesh,
                                 std::span<const std::string> host_of_rank);

}  // namespace holdfast::run
