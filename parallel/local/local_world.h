// LocalWorld: the ranks of a run as threads of one process that can die one by one, for tests: the twin of
// what parallel/mpi makes of ULFM.
//
//   LocalWorld world(4);
//   thread of rank r: const std::unique_ptr<ShrinkingWorld> mine = world.join(r);   // until it dies:
//   .reset()
//
// With a function that starts one rank more (a thread that joins as that), ranks can come later, too.
#pragma once

#include <functional>
#include <memory>

#include "parallel/group/membership.h"

namespace holdfast::inline parallel {

class LocalWorld {
 public:
  // Called with the number of the new rank, by one of the others' threads; false: it cannot be started.
  using StartRank = std::function<bool(int launched_rank)>;
  explicit LocalWorld(int ranks, StartRank start_rank = {});
  // Once for every rank; of its thread. The object's end is the rank's death. A shrink() in which somebody
  // does not take part is an error at its deadline.
  std::unique_ptr<ShrinkingWorld> join(int launched_rank);

 private:
  struct Shared;
  class Rank;
  std::shared_ptr<Shared> shared_;
};

}  // namespace holdfast::inline parallel
