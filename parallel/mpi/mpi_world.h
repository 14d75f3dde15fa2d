// MpiWorld: the communicators of a run's epochs over MPI. The first is MPI_COMM_WORLD; what follows is made
// of it by ULFM (MPIX_Comm_revoke and MPIX_Comm_shrink), where the MPI has that and it is switched on, or by
// MPI_Comm_spawn.
//
// None is freed before close(), at most one for every death and growth: so MPI never uses the number of an
// old one again, by which a late frame could come into a new one.
//
// Growth is safe but for a moment, as measured with Open MPI 5.0.11. The leader alone starts the new
// processes, while the others make steps, or wait in calls that see deaths. Connecting the two groups returns
// errors when somebody dies. Only MPI_Intercomm_merge, some milliseconds, hangs then, which is what the
// deadline is for. Each rank of the new group sends a message to every other at once: MPI asks for the
// addresses of a process when it first sends there, and hangs if that is dead by then, as in the next shrink.
//
// MPI_Comm_spawn returns when the new processes are in MPI_Init, and hangs as long as they are not, or mpirun
// does not answer. It cannot be given up, and MPI_THREAD_SERIALIZED allows no other call beside it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/group/membership.h"
#include "parallel/group/mpi_loader.h"
#include "parallel/mpi/mpi_communicator.h"

namespace holdfast::inline parallel {

class MpiWorld final : public ShrinkingWorld {
 public:
  // In a process that came later the caller calls join() before anything else. `listener`: as in start_mpi().
  MpiWorld(Env& env, bool fault_tolerant, WaitListener* listener);
  // Joins the ranks that started this process: prepares itself (mpi_loader.h), waits until they take it in,
  // and comes into their group. Where they do not take it, or do not come to it in time, it dies by SIGKILL,
  // as it does when the rank that started it dies.
  void join(std::int64_t timeout_ms, const Preparation& preparation);

  MpiCommunicator& current() override { return *epochs_.back(); }
  Result<void> shrink(std::int64_t timeout_ms, const std::string& why) override;
  Result<void> start_new_ranks(int count, const std::string& task, std::int64_t timeout_ms) override;
  std::string why_none_can_start() override;
  NewRankState new_rank_state() override;
  void dismiss_new_ranks() override;
  Result<void> grow(int count, std::int64_t timeout_ms, const std::string& why) override;
  void watch(std::function<std::string()> cut_off) override { cut_off_ = std::move(cut_off); }
  bool reported_by_peer() const override { return epochs_.back()->reported_by_peer(); }
  bool is_joiner() const override { return came_later_; }
  // Dismisses new ranks that wait, and frees the groups with processes that came later. MPI is about to be
  // finalised, by all together, and would wait for the dead of such groups.
  void close();

 private:
  // Processes that the leader has started and nobody has taken in yet.
  struct Started {
    MPI_Comm bridge = MPI_COMM_NULL;  // the leader is rank 0, they are the others
    int count = 0;
    std::vector<MPI_Request> ready = {};  // receives of what they say when they are ready
    bool lost = false;
  };

  Result<void> start_processes(int count, MPI_Comm& with_leader);
  Result<int> count_started(int wanted, std::int64_t timeout_ms);
  Result<void> connect(MPI_Comm mine, int leader, MPI_Comm bridge, bool later, MPI_Comm& next);
  void greet(MPI_Comm next, std::int64_t timeout_ms);
  void begin_epoch(MPI_Comm next, std::vector<int> launched_ranks);

  Env* env_;
  WaitListener* listener_;
  std::function<std::string()> cut_off_;
  bool came_later_ = false;
  int next_number_ = 0;  // of the next process that comes
  std::optional<Started> started_;
  std::vector<std::unique_ptr<MpiCommunicator>> epochs_;
  std::vector<MPI_Comm> connections_;  // between old and new processes
};

}  // namespace holdfast::inline parallel
