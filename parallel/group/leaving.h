// Leaving: decides how a rank ends that has given up its group while the others have not agreed to that. MPI tells
// nobody of a process that ends with an exit code, so those that still wait for the rank would do so until their own
// deadline; of one that dies by a signal it tells all. The function is pure.
//
// mpirun ends with the exit code of a rank only where a rank ends with one. So where all ranks give up, each by
// itself, the lowest of them looks on until the others are gone, and ends with the code of all.
#pragma once

#include <cstdint>
#include <vector>

namespace holdfast::parallel {

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
