// The MPI session of this process: initialised with MPI_THREAD_SERIALIZED, errors returned, only non-blocking
// calls that are polled. Init and finalize, which can only block, run under a deadline
// (parallel/mpi/mpi_calls.h).
#pragma once

#include "parallel/group/mpi_loader.h"

namespace holdfast::parallel {

// Implements start_mpi(); the function below implements mpi_library_facts().
Result<std::unique_ptr<MpiSession>> start_mpi_session(Env& env, std::int64_t join_timeout_ms,
                                                      WaitListener* listener,
                                                      const Preparation& preparation = {});
MpiFacts facts_of_linked_mpi();

}  // namespace holdfast::parallel
