// RecoveryTable answers what ranks that are left of a start go on with: plan_recovery (runtime/elastic/recovery_plan.h), asked
// once for each shape of what is left. How many copies of the model there are depends on how many ranks each host has, and
// not on which host it is, so that 16,384 inventories are not merged again at every fault.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "parallel/group/rank_assignment.h"
#include "tools/simulate/cluster.h"

namespace holdfast::launch::fleet {

class RecoveryTable {
 public:
  explicit RecoveryTable(const Cluster& cluster);

  // Returns how many copies compute; 0: too few ranks are left. `ranks_by_host`: of the hosts that have any.
  int copies_of(const std::vector<int>& ranks_by_host);
  // Returns whether each part of a state that was in RAM, with a replica on the buddy of each rank, is on a host that is
  // left. `ranks_by_host`: when the state was made; `is_lost`: by the same index.
  bool survives(const std::vector<int>& ranks_by_host, const std::vector<bool>& is_lost);

  // Returns whether `left` of the ranks of an epoch may go on without the others, which are proven dead or silent.
  bool has_majority(int before, int left, bool is_silent);

 private:
  using Shape = std::map<int, int>;  // number of hosts with so many ranks
  static Shape shape_of(const std::vector<int>& ranks_by_host);
  // Placed says on which host each active rank is, and on which one its buddy; -1: it has none.
  struct Placed {
    std::size_t host = 0;
    int host_of_buddy = -1;
  };
  const std::vector<Placed>& placed(const std::vector<int>& ranks_by_host);

  AssignmentRequest request_;
  std::map<Shape, int> copies_;
  std::map<std::vector<int>, std::vector<Placed>> placed_;  // by ranks by host; mostly that of the whole run
  std::map<std::array<int, 3>, bool> quorum_;
};

}  // namespace holdfast::launch::fleet
