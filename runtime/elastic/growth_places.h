// Plans which places of a host new ranks get, from what has become of the ranks that joined there before. A place
// is a GPU, or a local rank of a run on the CPU. Pure: equal data gives equal plans, so all ranks plan alike.
//
//   - A free place where fewer ranks in a row have died soon after they had joined comes first.
//   - Each such death doubles the pause before the place is used again, and after GrowingPauses::max_failures
//     it is left alone (watchdog/growing_pauses.h): each growth and each recovery costs all other ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/config.h"

namespace holdfast::elastic {

// Joiner is a rank that has joined the run after its start, and its place.
struct Joiner {
  int launched_rank = 0;
  int number = 0;                         // local rank
  std::string place = {};                 // name of the place
  std::int64_t came_ns = 0, lost_ns = 0;  // Env::monotonic_ns() of some rank of the host; lost_ns 0: it lives

  static void visit_fields(auto& self, auto&& visit) {
    visit("launched_rank", self.launched_rank);
    visit("number", self.number);
    visit("place", self.place);
    visit("came_ns", self.came_ns);
    visit("lost_ns", self.lost_ns);
  }
};

// Adds what another rank knows. The oldest joiners that were lost are forgotten when there are too many.
void merge_joiners(std::vector<Joiner>& all, std::span<const Joiner> others);

struct GrowthPlan {
  std::vector<int> numbers = {};  // local ranks that new ranks may have, in the order in which they are given
  int wanted = 0;                 // number of new ranks of the next growth, which is the first of `numbers`
  std::int64_t not_before_ns = 0;
  std::vector<std::string> left_alone = {};  // names of the free places that are not used any more
};

// Plans the next growth. `places`: names by local rank, of which several may be equal. `taken`: local ranks of the
// ranks that were launched and live. `missing`: number of ranks that the run would like to have.
GrowthPlan plan_growth_places(std::span<const std::string> places, std::span<const int> taken,
                              std::span<const Joiner> joiners, int missing, const ElasticConfig& config);

}  // namespace holdfast::elastic
