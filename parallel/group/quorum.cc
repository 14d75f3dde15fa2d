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

LeavingStep leaving_step(const LeavingFacts& facts) {
  if (facts.others.empty()) return LeavingStep::exit_with_code;
  if (facts.nobody_ends_them) return facts.looked_long ? LeavingStep::end_others : LeavingStep::look_again;
  const bool is_lowest = facts.rank < std::ranges::min(facts.others);
  return is_lowest && !facts.looked_long ? LeavingStep::look_again : LeavingStep::die;
}

}  // namespace holdfast::parallel
