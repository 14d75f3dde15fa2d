// Quorum: decides whether the ranks that are left of an epoch may go on. Ranks that died are no reason to
// stop, but unreachable ranks may be one: they may be going on themselves, and two halves of a run must not
// both do so. The function is pure; all ranks that are left get the same answer, because they count the same
// ranks.
#pragma once

#include <cstdint>
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

// Leaving: decides how a rank ends that has given up its group while the others have not agreed to that. MPI tells
// nobody of a process that ends with an exit code, so those that still wait for the rank would do so until their own
// deadline; of one that dies by a signal it tells all. The function is pure.
//
// mpirun ends with the exit code of a rank only where a rank ends with one. So where all ranks give up, each by
// itself, the lowest of them looks on until the others are gone, and ends with the code of all.
enum class LeavingStep : std::uint8_t {
  exit_with_code,  // nobody waits for this rank
  look_again,      // the others may be leaving, too
  die,             // by SIGKILL
  end_others,      // by SIGKILL, and exit with the code
};

struct LeavingFacts {
  int rank = 0;                  // launched, as the others
  std::vector<int> others = {};  // members that may be alive
  bool looked_long = false;      // longer than the others take to leave if they do
  bool nobody_ends_them =
      false;  // a member did not come in all of the time, and no guard ends one that hangs
};

LeavingStep leaving_step(const LeavingFacts& facts);

}  // namespace holdfast::parallel
