#include "runtime/cli/rank_group.h"

#include "parallel/comm/launcher.h"
#include "parallel/local/local_communicator.h"
#include "runtime/run/launch_record.h"

namespace holdfast::cli {

Result<RankGroup> join_ranks(Env& env, WaitListener* listener, const Preparation& preparation) {
  RankGroup group;
  if (!launched_by_mpi(env)) {
    HF_TRY_VOID(check_tasks_are_ranks(env));
    group.alone = std::move(make_local_communicators(1).front());
    return group;
  }
  use_launch_scratch(env);
  HF_TRY_VOID(env.die_with_parent());  // a killed mpirun leaves no orphans
  HF_TRY(group.mpi, start_mpi(env, join_timeout_ms, listener, preparation));
  return group;
}

int leave_ranks(RankGroup& group, int code, ExitCode after_error, const std::function<void()>& ends) {
  constexpr std::int64_t finish_timeout_ms = 30'000;
  if (!group.mpi) return code;
  const bool speaks = group.communicator().rank() == 0;
  // MPI_Finalize would wait for a peer that is gone.
  if (group.communicator().abandoned() || !group.mpi->finish(finish_timeout_ms).ok()) {
    if (ends) ends();
    group.mpi->leave_after_error(after_error);
  }
  return speaks ? code : 0;
}

}  // namespace holdfast::cli
