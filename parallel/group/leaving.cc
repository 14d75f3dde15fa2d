#include "parallel/group/leaving.h"

#include <algorithm>

namespace holdfast::parallel {

LeavingStep leaving_step(const LeavingFacts& facts) {
  if (facts.others.empty()) return LeavingStep::exit_with_code;
  if (facts.nobody_ends_them) return facts.looked_long ? LeavingStep::end_others : LeavingStep::look_again;
  const bool is_lowest = facts.rank < std::ranges::min(facts.others);
  return is_lowest && !facts.looked_long ? LeavingStep::look_again : LeavingStep::die;
}

}  // namespace holdfast::parallel
