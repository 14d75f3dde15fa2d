// What the launcher of an MPI job (mpirun, srun with PMIx) told this process through its environment. No MPI
// library is asked, so it is known where there is none.
#pragma once

#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline parallel {

bool launched_by_mpi(Env& env);    // as one rank of a job
bool launched_by_ranks(Env& env);  // of a run that goes on meanwhile, by MPI_Comm_spawn
// Returns whether this is one of several tasks of srun itself, with no mpirun between: with PMIx they are
// ranks of a job, else each is alone.
bool launched_by_srun(Env& env);
int launched_rank(Env& env);           // 0 when not launched by MPI or not said
int launched_ranks(Env& env);          // ranks of the job, 1 when not launched by MPI or not said
int launched_ranks_on_host(Env& env);  // of this host
int launched_rank_on_host(Env& env);   // 0 when not launched by MPI or not said

// What the ranks of one start have in common on this host and those of no other start have, also where they
// joined it later (MPI_Comm_spawn): "prterun-a-4711". One rank alone has a name of its own.
std::string launched_job(Env& env);

// ExitCode::config for a task of srun that was told no way to find the others: each would train a run of its
// own, in the same directory.
Result<void> check_tasks_are_ranks(Env& env);

// For sentences: "rank 2 of 4 (OMPI_COMM_WORLD_SIZE=4)".
std::string launched_as(Env& env);

}  // namespace holdfast::inline parallel
