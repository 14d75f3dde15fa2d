#include "parallel/mpi/mpi_world.h"

#include <mpi-ext.h>

#include "parallel/mpi/deadline.h"

namespace holdfast {

MpiWorld::MpiWorld(Env& env, bool fault_tolerant, WaitListener* listener) : env_(&env), listener_(listener) {
  epochs_.push_back(
      std::make_unique<MpiCommunicator>(env, MPI_COMM_WORLD, fault_tolerant, listener, cut_off_));
}

#ifdef OMPI_HAVE_MPI_EXT_FTMPI
// Of what shrink promises about memory: everyone that comes into it has drained its requests before.
Result<void> MpiWorld::shrink(std::int64_t timeout_ms, const std::string& why) {
  current().abandon();
  const int rank = current().global_rank(current().rank());
  if (!current().drained()) {
    return fail(ExitCode::communication,
                "messages of rank {} to a rank that hangs are still under way: start the run again", rank);
  }
  const Deadline deadline(
      *env_, timeout_ms, {listener_, "coming together again"},
      fmt::format("holdfast: {}\nholdfast: rank {} then waited {} ms for the other ranks to come "
                  "together without whom it had lost: one of them hangs or is out of reach; the "
                  "run ends, start it again",
                  why, rank, timeout_ms),
      [this] { return cut_off_ ? cut_off_() : ""; });
  MPI_Comm next = MPI_COMM_NULL;
  if (MPIX_Comm_shrink(current().handle(), &next) != MPI_SUCCESS || next == MPI_COMM_NULL) {
    return fail(ExitCode::communication,
                "MPI could not make a group of the ranks that are left (on rank {}): start the run again",
                rank);
  }
  MPI_Comm_set_errhandler(next, MPI_ERRORS_RETURN);
  epochs_.push_back(
      std::make_unique<MpiCommunicator>(*env_, next, /*fault_tolerant=*/true, listener_, cut_off_));
  return {};
}
#else
Result<void> MpiWorld::shrink(std::int64_t, const std::string&) {
  return fail(ExitCode::communication, "this MPI has no fault tolerance (ULFM): start the run again");
}
#endif

}  // namespace holdfast
