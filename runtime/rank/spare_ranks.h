// Says whether a run can go on without some of its ranks.
#pragma once

#include <set>
#include <span>

#include "runtime/rank/rank_context.h"

namespace holdfast::rank {

// Returns whether enough copies of the model are left without these ranks of the communicator, which there are.
inline bool can_spare(const RankContext& rank, std::span<const int> ranks) {
  std::set<int> copies;  // of the model, that lose a rank
  for (const int each : ranks) copies.insert(rank.mesh.coordinate_of(each).data);
  const int left = rank.mesh.shape().data - static_cast<int>(copies.size());
  return !ranks.empty() && left >= rank.config.elastic.min_data_parallel;
}

}  // namespace holdfast::rank
