// LocalWorld: the ranks of a run as threads of one process that can die one by one, for tests: the twin of
// what parallel/mpi makes of ULFM.
//
//   LocalWorld world(4);
//   thread of rank r: const std::unique_ptr<ShrinkingWorld> mine = world.join(r);   // until it dies:
//   .reset()
#pragma once

#include <memory>

#include "parallel/membership.h"

namespace holdfast {

class LocalWorld {
 public:
  explicit LocalWorld(int ranks);
  // Once for every rank; of its thread. The object's end is the rank's death. A shrink() in which somebody
  // does not take part is an error at its deadline.
  std::unique_ptr<ShrinkingWorld> join(int launched_rank);

 private:
  struct Shared;
  class Rank;
  std::shared_ptr<Shared> shared_;
};

}  // namespace holdfast
