// MpiWorld: the communicators of a run's epochs over MPI. The first is MPI_COMM_WORLD; what follows is made
// of it by ULFM (MPIX_Comm_revoke and MPIX_Comm_shrink), where the MPI has that and it is switched on, or by
// MPI_Comm_spawn.
//
// None is freed before close(), at most one for every death and growth: so MPI never uses the number of an
// old one again, by which a late frame could come into a new one.
//
// To grow is safe but for a moment, as measured with Open MPI 5.0.11. The leader alone starts the new
// processes, while the others make steps, or wait in calls that see deaths. To connect the two groups returns
// errors when somebody dies. Only MPI_Intercomm_merge, some milliseconds, hangs then, which is what the
// deadline is for. Whoever is in the new group sends a word to everyone at once: MPI asks for the addresses
// of a process when it first sends there, and hangs if that is dead by then, as in the next shrink.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/membership.h"
#include "parallel/mpi/mpi_communicator.h"
#include "parallel/mpi_loader.h"

namespace holdfast {

class MpiWorld final : public ShrinkingWorld {
 public:
  // Of a process that came later the caller calls join() before anything else.
  // `listener`: as in start_mpi().
  MpiWorld(Env& env, bool fault_tolerant, WaitListener* listener);
  // Called by such a process: prepares itself (mpi_loader.h), waits until those that started it take it in,
  // and comes into their group. A group that does not take it, or does not come to it in time, is none of its
  // business any more: it dies by SIGKILL, as it does when the rank that started it dies.
  void join(std::int64_t timeout_ms, const Preparation& preparation);

  MpiCommunicator& current() override { return *epochs_.back(); }
  Result<void> shrink(std::int64_t timeout_ms, const std::string& why) override;
  Result<void> start_new_ranks(int count, const std::string& task, std::int64_t timeout_ms) override;
  NewRankState new_rank_state() override;
  void dismiss_new_ranks() override;
  Result<void> grow(int count, std::int64_t timeout_ms, const std::string& why) override;
  void watch(std::function<std::string()> cut_off) override { cut_off_ = std::move(cut_off); }
  bool told_by_another() const override { return epochs_.back()->told_by_another(); }
  bool came_later() const override { return came_later_; }
  // MPI is about to be finalised, by all together; it would wait for the dead of groups with processes that
  // came later, unless they are freed.
  void close();

 private:
  // Processes that the leader has started and nobody has taken in yet.
  struct Started {
    MPI_Comm bridge = MPI_COMM_NULL;  // the leader is rank 0, they are the others
    int count = 0;
    std::vector<MPI_Request> ready = {};  // their words, as long as they have not come
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

}  // namespace holdfast
