// Quorum: decides whether the ranks that are left of an epoch may go on. Ranks that died are no reason to
// stop, but unreachable ranks may be one: they may be going on themselves, and two halves of a run must not
// both do so. The function is pure; all ranks that are left get the same answer, because they count the same
// ranks.
#pragma once

#include <span>
#include <vector>

namespace holdfast::parallel {

// Launched ranks that a quorum is computed from; each list is ascending.
struct QuorumFacts {
  std::vector<int> before;  // members of the newest epoch that any rank left has agreed on
  std::vector<int> left;    // those of `before` that are left
  std::vector<int> dead;    // those of `before` proven dead: they do not count. Silence is no proof
};

// Returns true when more than half of the ranks that count are left; or half of them, among these the lowest
// that counts. When all missing ranks are dead, the rest goes on, even a single rank.
bool has_quorum(const QuorumFacts& facts);

}  // namespace holdfast::parallel
