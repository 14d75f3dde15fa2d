// LocalWorld runs the ranks of a run as threads of one process that can die one by one: the counterpart of what
// parallel/mpi builds on ULFM.
//
//   LocalWorld world(4);
//   thread of rank r: const std::unique_ptr<ShrinkingWorld> mine = world.join(r);  // ends with .reset()
//
// With a function that starts more ranks (threads that join as those), ranks can join later, too.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/group/membership.h"
#include "runtime/os/processes.h"
#include "tests/support/forwarding_env.h"

namespace holdfast::test {

class LocalWorld {
 public:
  // Called with the number of the first new rank, by a thread of another rank; false: so many cannot be started, and none is.
  using StartRanks = std::function<bool(int first_rank, int count)>;
  // Waits and deadlines are those of `env`, which outlives it.
  explicit LocalWorld(int ranks, StartRanks start_ranks = {}, Env& env = posix_env());
  // Joins as one rank; called once for every rank, by its thread. The object's end is the rank's death. A
  // shrink() in which a rank does not take part is an error at its deadline.
  std::unique_ptr<ShrinkingWorld> join(int launched_rank);

 private:
  struct Shared;
  class Rank;
  std::shared_ptr<Shared> shared_;
};

// The Env that the Membership of such a rank gets. It sees no process: the death of a rank ends none, and a signal
// to the process of one would end all of them.
class ThreadRankEnv final : public ForwardingEnv {
 public:
  using ForwardingEnv::ForwardingEnv;
  Processes& processes() override { return processes_; }

 private:
  class NoProcesses final : public Processes {
   public:
    Result<std::unique_ptr<Process>> start(const ProcessStart&) override {
      return fail(ExitCode::communication, "ranks that are threads start no process");
    }
    Result<std::unique_ptr<Process>> find(std::int64_t) override { return std::unique_ptr<Process>(); }
    Result<std::optional<ProcessFacts>> look(std::int64_t) override { return std::optional<ProcessFacts>(); }
    std::vector<std::int64_t> list() override { return {}; }
    std::string own_namespace() override { return ""; }
    bool wait_any_ended(std::span<Process* const>, std::int64_t) override { return false; }
  };

  NoProcesses processes_;
};

}  // namespace holdfast::test
