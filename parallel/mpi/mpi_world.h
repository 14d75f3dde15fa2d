// MpiWorld holds the communicators of a run's membership epochs over MPI. The first is MPI_COMM_WORLD; later
// ones are made from it by ULFM (MPIX_Comm_revoke and MPIX_Comm_shrink), where the MPI has that and it is
// switched on, or by MPI_Comm_spawn.
//
// None is freed before close(), at most one for every death and growth: so MPI never uses the number of an
// old communicator again, by which a late frame could arrive in a new one.
//
// Growth is safe except for a moment, as measured with Open MPI 5.0.11. Only the leader starts the new
// processes, while the others make steps, or wait in calls that detect deaths. Connecting the two groups
// returns errors when a rank dies. Only MPI_Intercomm_merge, some milliseconds, hangs then; the deadline is
// for that. Each rank of the new group sends a message to every other at once: MPI asks for the address of a
// process when it first sends to it, and hangs if that process is dead by then, as in the next shrink.
//
// MPI_Comm_spawn returns when the new processes are in MPI_Init, and hangs as long as they are not, or mpirun
// does not answer. It cannot be cancelled, and MPI_THREAD_SERIALIZED allows no other call at the same time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/group/membership.h"
#include "parallel/group/mpi_loader.h"
#include "parallel/mpi/mpi_communicator.h"

namespace holdfast::parallel {

class MpiWorld final : public ShrinkingWorld {
 public:
  // Requires, in a process that was started later, that the caller calls join() before anything else.
  // `listener`: the one of start_mpi().
  MpiWorld(Env& env, bool fault_tolerant, WaitListener* listener);
  // Joins the ranks that started this process: prepares itself (mpi_loader.h), waits until they admit it, and
  // enters their group. If they do not admit it or do not reach that point in time, the process dies by
  // SIGKILL, as it does when the rank that started it dies.
  void join(std::int64_t timeout_ms, const Preparation& preparation);

  MpiCommunicator& current() override { return *epochs_.back(); }
  Result<void> shrink(std::int64_t timeout_ms, const std::string& why) override;
  Result<void> start_new_ranks(int count, const std::string& task, std::int64_t timeout_ms) override;
  std::string why_none_can_start() override;
  NewRankState new_rank_state() override;
  void dismiss_new_ranks() override;
  Result<void> grow(int count, std::int64_t timeout_ms, const std::string& why) override;
  void watch(std::function<std::string()> cut_off) override { cut_off_ = std::move(cut_off); }
  void leaves_by(std::function<void()> leave) override { leave_ = std::move(leave); }
  bool reported_by_peer() const override { return epochs_.back()->reported_by_peer(); }
  bool is_joiner() const override { return came_later_; }
  // Dismisses new ranks that wait, and frees the groups with processes that were started later. All ranks are
  // about to finalise MPI together, which would wait for the dead of such groups.
  void close();

 private:
  // Processes that the leader has started and that have not been admitted yet.
  struct Started {
    MPI_Comm bridge = MPI_COMM_NULL;  // the leader is rank 0; the new processes are the others
    int count = 0;
    std::vector<MPI_Request> ready = {};  // receives of the messages that say they are ready
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
  std::function<void()> leave_;
  bool came_later_ = false;
  int next_number_ = 0;  // launched rank of the next process that is started
  std::optional<Started> started_;
  std::vector<std::unique_ptr<MpiCommunicator>> epochs_;
  std::vector<MPI_Comm> connections_;  // between old and new processes
};

}  // namespace holdfast::parallel
