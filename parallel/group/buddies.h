// Buddies: chooses for each rank the rank that stores replicas of its RAM snapshots, so that nothing is lost
// with one host. The functions are pure, and their results are equal on all ranks.
//
// The buddy of a rank holds the same part of the model: it is another rank of its data group, on another host
// where the group has one. State that is lost with a host is then on the other hosts, and the replica that a
// rank stores is as large as its own snapshot. A group of one rank has no buddies: no rank could go on with a
// replica of it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/group/mesh.h"

namespace holdfast::parallel {

// Returns the buddy of each rank; -1 for spares and for a rank that is alone in its group. Within a group,
// all ranks that can store replicas store about equally many; where hosts have unequal numbers of its ranks,
// another host has priority over equal numbers. `host_of_rank`: the name of each rank's host.
std::vector<int> buddies_of(const Mesh& mesh, std::span<const std::string> host_of_rank);

// Returns whether every rank has a buddy on another host: then no part of the state is lost with one host.
bool all_cross_hosts(std::span<const int> buddies, std::span<const std::string> host_of_rank);
// Returns whether at least one rank has a buddy on another host.
bool any_crosses_hosts(std::span<const int> buddies, std::span<const std::string> host_of_rank);

}  // namespace holdfast::parallel
