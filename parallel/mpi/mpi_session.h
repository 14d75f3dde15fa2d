// The MPI of this process: initialised with MPI_THREAD_SERIALIZED, errors returned, only non-blocking calls
// that are polled. Init and finalize, which can only block, run under a deadline: a thread ends the process
// by SIGKILL when it passes, after a sentence on stderr that says what was waited for.
#pragma once

#include <memory>
#include <string>

#include "parallel/communicator.h"
#include "runtime/core/env.h"

namespace holdfast {

// True when a launcher (mpirun, srun with PMIx) started this process as one rank of a job.
bool launched_by_mpi(Env& env);
int launched_ranks(Env& env);          // ranks of the job as the launcher said, 1 when not launched by MPI
int launched_ranks_on_host(Env& env);  // of this host

struct MpiFacts {
  std::string library;          // "Open MPI 5.0.11"
  bool fault_tolerant = false;  // ULFM compiled in and switched on
};

class MpiSession {
 public:
  static Result<std::unique_ptr<MpiSession>> start(Env& env, std::int64_t join_timeout_ms);
  virtual ~MpiSession() = default;
  virtual Communicator& world() = 0;
  virtual MpiFacts facts() const = 0;
  // Leaves MPI together with all other ranks. After a communication error it is not called: MPI_Finalize
  // would wait for the dead, and the destructor never calls it.
  virtual Result<void> finish(std::int64_t timeout_ms) = 0;
  // Ends the process after a communication error. mpirun may end all others as soon as one rank exits with a
  // code other than 0; so rank 0, which writes the run's last record, goes first, and the others give it a
  // second.
  [[noreturn]] virtual void leave_after_error(ExitCode code) = 0;
};

// Facts of the MPI library without starting it (for `holdfast check` and --version); fault_tolerant says what
// was compiled in.
MpiFacts mpi_library_facts();

}  // namespace holdfast
