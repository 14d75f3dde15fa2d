#include "parallel/buddies.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>

namespace holdfast {
namespace {

class GroupPlanner {
 public:
  GroupPlanner(std::vector<int> group, std::span<const std::string> host_of_rank)
      : group_(std::move(group)), host_of_rank_(host_of_rank) {}

  // Another host first, then who keeps the fewest, then who comes next in the group.
  int choose(std::size_t member) {
    int best = -1;
    std::tuple<bool, int, std::size_t> best_cost;
    for (std::size_t distance = 1; distance < group_.size(); ++distance) {
      const int candidate = group_[(member + distance) % group_.size()];
      const std::tuple<bool, int, std::size_t> cost = {host_of(candidate) == host_of(group_[member]),
                                                       kept_[candidate], distance};
      if (best >= 0 && best_cost <= cost) continue;
      best = candidate;
      best_cost = cost;
    }
    if (best >= 0) ++kept_[best];
    return best;
  }

 private:
  const std::string& host_of(int rank) const { return host_of_rank_[static_cast<std::size_t>(rank)]; }

  std::vector<int> group_;
  std::span<const std::string> host_of_rank_;
  std::map<int, int> kept_;  // replicas, by rank
};

}  // namespace

std::vector<int> buddies_of(const Mesh& mesh, std::span<const std::string> host_of_rank) {
  HF_CHECK(std::ssize(host_of_rank) == mesh.shape().ranks());
  std::vector<int> buddies(host_of_rank.size(), -1);
  for (int rank = 0; rank < mesh.shape().ranks(); ++rank) {
    if (mesh.is_spare(rank)) continue;
    const std::vector<int> group = mesh.data_group(rank);
    if (group.front() != rank) continue;  // once for every group
    GroupPlanner planner(group, host_of_rank);
    for (std::size_t member = 0; member < group.size(); ++member)
      buddies[static_cast<std::size_t>(group[member])] = planner.choose(member);
  }
  return buddies;
}

bool all_cross_hosts(std::span<const int> buddies, std::span<const std::string> host_of_rank) {
  if (buddies.empty()) return false;
  for (std::size_t rank = 0; rank < buddies.size(); ++rank) {
    if (buddies[rank] < 0 || host_of_rank[static_cast<std::size_t>(buddies[rank])] == host_of_rank[rank])
      return false;
  }
  return true;
}

bool any_crosses_hosts(std::span<const int> buddies, std::span<const std::string> host_of_rank) {
  for (std::size_t rank = 0; rank < buddies.size(); ++rank) {
    if (buddies[rank] >= 0 && host_of_rank[static_cast<std::size_t>(buddies[rank])] != host_of_rank[rank])
      return true;
  }
  return false;
}

}  // namespace holdfast
