#include "parallel/group/quorum.h"

#include <algorithm>
#include <iterator>

namespace holdfast::parallel {

bool has_quorum(const QuorumFacts& facts) {
  std::vector<int> counting;
  std::ranges::set_difference(facts.before, facts.dead, std::back_inserter(counting));
  const auto counts = [&](int rank) { return std::ranges::binary_search(counting, rank); };
  const auto left = static_cast<std::size_t>(std::ranges::count_if(facts.left, counts));
  if (2 * left != counting.size()) return 2 * left > counting.size();
  return !counting.empty() && std::ranges::binary_search(facts.left, counting.front());
}

}  // namespace holdfast::parallel
