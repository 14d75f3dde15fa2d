// Joins and leaves the group of the ranks that a launcher has started, for commands that compute under
// mpirun.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/group/mpi_loader.h"
#include "runtime/core/result.h"
#include "runtime/core/wait_listener.h"
#include "runtime/os/env.h"

namespace holdfast::cli {

// Longest wait for all ranks of a start to join.
inline constexpr std::int64_t join_timeout_ms = 60'000;

// RankGroup is the group that this process is a rank of: that of MPI if a launcher started the process, else
// a group of one.
struct RankGroup {
  std::unique_ptr<MpiSession> mpi;
  std::unique_ptr<Communicator> alone;
  Communicator& communicator() { return mpi ? mpi->world() : *alone; }
};

// Joins the group. `listener` and `preparation`: as in start_mpi().
Result<RankGroup> join_ranks(Env& env, WaitListener* listener = nullptr, const Preparation& preparation = {});
// Ends MPI together with the other ranks, if there is one. Returns the exit code of this process: `code` on
// rank 0, and 0 on the others, because mpirun counts a rank that exits with a code twice, and hangs at times
// when several do (PRRTE's errmgr/dvm, fixed in 2026 by its commit 7148f8e84d). Where a peer is gone, the
// process ends here, with ExitCode `after_error`. `ends` is called before that.
int leave_ranks(RankGroup& group, int code, ExitCode after_error, const std::function<void()>& ends = {});

}  // namespace holdfast::cli
