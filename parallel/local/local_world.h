// LocalWorld runs the ranks of a run as threads of one process that can die one by one, for tests: the
// counterpart of what parallel/mpi builds on ULFM.
//
//   LocalWorld world(4);
//   thread of rank r: const std::unique_ptr<ShrinkingWorld> mine = world.join(r);  // ends with .reset()
//
// With a function that starts one more rank (a thread that joins as that), ranks can join later, too.
#pragma once

#include <functional>
#include <memory>

#include "parallel/group/membership.h"

namespace holdfast::inline parallel {

class LocalWorld {
 public:
  // Called with the number of the new rank, by a thread of another rank; false: it cannot be started.
  using StartRank = std::function<bool(int launched_rank)>;
  // Waits and deadlines are those of `env`, which outlives it.
  explicit LocalWorld(int ranks, StartRank start_rank = {}, Env& env = posix_env());
  // Joins as one rank; called once for every rank, by its thread. The object's end is the rank's death. A
  // shrink() in which a rank does not take part is an error at its deadline.
  std::unique_ptr<ShrinkingWorld> join(int launched_rank);

 private:
  struct Shared;
  class Rank;
  std::shared_ptr<Shared> shared_;
};

}  // namespace holdfast::inline parallel
