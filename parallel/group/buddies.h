// Buddies: chooses for each rank the one that stores replicas of its RAM snapshots, so that a host may go and
// nothing is lost. Pure; equal on all ranks.
//
// The buddy of a rank holds the same part of the model: another rank of its data group, on another host where
// the group has one. What is lost with a host is then on the others, and what a rank keeps is as large as
// what it gives. A group of one has no buddies: nobody could go on with what they kept.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/group/mesh.h"

namespace holdfast::inline parallel {

// Returns the buddy of each rank; -1 for spares and for a rank that is alone in its group. Within a group
// each rank keeps about as many replicas as the others do that can; where hosts have unequal numbers of its
// ranks, another host goes before equal numbers. `host_of_rank`: the name of each rank's host.
std::vector<int> buddies_of(const Mesh& mesh, std::span<const std::string> host_of_rank);

// Returns whether every rank has a buddy on another host: then no host takes a part of the state with it.
bool all_cross_hosts(std::span<const int> buddies, std::span<const std::string> host_of_rank);
// Returns whether some buddy is on another host than its rank.
bool any_crosses_hosts(std::span<const int> buddies, std::span<const std::string> host_of_rank);

}  // namespace holdfast::inline parallel
