#include "tools/simulate/recovery_table.h"

#include <fmt/core.h>

#include <algorithm>

#include "parallel/group/buddies.h"
#include "parallel/group/quorum.h"
#include "runtime/elastic/recovery_plan.h"

namespace holdfast::launch::fleet {
namespace {

std::vector<std::string> host_of_each_rank(const std::vector<int>& ranks_by_host) {
  std::vector<std::string> hosts;
  for (std::size_t host = 0; host < ranks_by_host.size(); ++host)
    hosts.insert(hosts.end(), static_cast<std::size_t>(ranks_by_host[host]), fmt::format("h{}", host));
  return hosts;
}

}  // namespace

RecoveryTable::RecoveryTable(const Cluster& cluster)
    : request_{.data_max = static_cast<int>(cluster.data),
               .data_min = static_cast<int>(cluster.min_data_parallel),
               .pipeline = static_cast<int>(cluster.pipeline),
               .tensor = static_cast<int>(cluster.tensor)} {}

int RecoveryTable::copies_of(const std::vector<int>& ranks_by_host) {
  const Shape shape = shape_of(ranks_by_host);
  if (const auto known = copies_.find(shape); known != copies_.end()) return known->second;
  std::vector<RecoveryInventory> inventories;
  for (std::string& host : host_of_each_rank(ranks_by_host))
    inventories.push_back({.host = std::move(host), .joined = true, .log_opened = true, .lost_some = true});
  const RecoveryPlan plan = plan_recovery(inventories, request_);
  const bool goes_on = plan.action == RecoveryAction::use_assignment;
  return copies_[shape] = goes_on ? plan.assignment->shape.data : 0;
}

RecoveryTable::Shape RecoveryTable::shape_of(const std::vector<int>& ranks_by_host) {
  Shape shape;
  for (const int ranks : ranks_by_host) ++shape[ranks];
  return shape;
}

bool RecoveryTable::survives(const std::vector<int>& ranks_by_host, const std::vector<bool>& is_lost) {
  const std::vector<Placed>& ranks = placed(ranks_by_host);
  return !ranks.empty() && std::ranges::none_of(ranks, [&](const Placed& rank) {
    return is_lost[rank.host] &&
           (rank.host_of_buddy < 0 || is_lost[static_cast<std::size_t>(rank.host_of_buddy)]);
  });
}

const std::vector<RecoveryTable::Placed>& RecoveryTable::placed(const std::vector<int>& ranks_by_host) {
  constexpr std::size_t most_kept = 64;
  if (const auto known = placed_.find(ranks_by_host); known != placed_.end()) return known->second;
  if (placed_.size() >= most_kept) placed_.clear();
  std::vector<Placed>& ranks = placed_[ranks_by_host];
  const std::vector<std::string> hosts = host_of_each_rank(ranks_by_host);
  const Result<RankAssignment> assignment = assign_ranks(request_, hosts);
  if (!assignment.ok()) return ranks;
  MeshShape shape = assignment->shape;
  shape.spares = static_cast<int>(hosts.size()) - shape.active();
  const Result<Mesh> mesh = Mesh::placed(shape, hosts);
  if (!mesh.ok()) return ranks;
  std::vector<int> host_of_rank;
  for (std::size_t host = 0; host < ranks_by_host.size(); ++host)
    host_of_rank.insert(host_of_rank.end(), static_cast<std::size_t>(ranks_by_host[host]),
                        static_cast<int>(host));
  const std::vector<int> buddies = buddies_of(*mesh, hosts);
  for (const int rank : assignment->active_ranks) {
    const int buddy = buddies[static_cast<std::size_t>(rank)];
    ranks.push_back({.host = static_cast<std::size_t>(host_of_rank[static_cast<std::size_t>(rank)]),
                     .host_of_buddy = buddy < 0 ? -1 : host_of_rank[static_cast<std::size_t>(buddy)]});
  }
  return ranks;
}

bool RecoveryTable::has_majority(int before, int left, bool is_silent) {
  const std::array key = {before, left, is_silent ? 1 : 0};
  if (const auto known = quorum_.find(key); known != quorum_.end()) return known->second;
  QuorumFacts facts;
  for (int rank = 0; rank < before; ++rank) {
    facts.before.push_back(rank);
    if (rank < left) {
      facts.left.push_back(rank);
    } else if (!is_silent) {
      facts.dead.push_back(rank);
    }
  }
  return quorum_[key] = has_quorum(facts);
}

}  // namespace holdfast::launch::fleet
