// Quorum: whether the ranks that are left of an epoch may go on. Ranks that died are no reason to stop, ranks
// that are out of reach may be: they may be going on themselves, and two halves of a run must not both.
// Pure; all that are left come to the same answer, because they count the same.
#pragma once

#include <span>
#include <vector>

namespace holdfast::inline parallel {

// Launched ranks, each list ascending.
struct QuorumFacts {
  std::vector<int> before;  // of the newest epoch that anyone left has agreed on
  std::vector<int> left;    // of these
  std::vector<int> dead;    // of these: proven, so they do not count. Silence is no proof
};

// More than half of those that count are left; or half of them, and among these the lowest that counts.
// Everyone that is missing dead: the rest goes on, be it one.
bool has_quorum(const QuorumFacts& facts);

}  // namespace holdfast::inline parallel
