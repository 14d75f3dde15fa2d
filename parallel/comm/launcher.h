// Launcher: reads what the launcher of an MPI job (mpirun, srun with PMIx) passed to this process in its
// environment. No MPI library is called, so this also works where there is none.
#pragma once

#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::parallel {

bool launched_by_mpi(Env& env);    // as one rank of a job
bool launched_by_ranks(Env& env);  // by ranks of a run that is going on, with MPI_Comm_spawn
// Returns whether this is one of several tasks that srun itself started, with no mpirun between: with PMIx
// they are ranks of a job, else each is on its own.
bool launched_by_srun(Env& env);
int launched_rank(Env& env);           // 0 when not launched by MPI or not set
int launched_ranks(Env& env);          // ranks of the job; 1 when not launched by MPI or not set
int launched_ranks_on_host(Env& env);  // ranks of the job on this host; 1 when not launched by MPI or not set
int launched_rank_on_host(Env& env);   // 0 when not launched by MPI or not set

// Returns a name that the ranks of one start on this host have in common, and no ranks of another start, also
// where they joined later (MPI_Comm_spawn): "prterun-a-4711". A single process without MPI has a name of its
// own.
std::string launched_job(Env& env);

// Returns ExitCode::config for a task of srun that has no way to find the others: each would train a run of
// its own, in the same directory.
Result<void> check_tasks_are_ranks(Env& env);

// Returns the rank for messages: "rank 2 of 4 (OMPI_COMM_WORLD_SIZE=4)".
std::string launched_as(Env& env);

}  // namespace holdfast::parallel
