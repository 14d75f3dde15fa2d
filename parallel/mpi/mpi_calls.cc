#include "parallel/mpi/mpi_calls.h"

#include <mpi-ext.h>

#include <numeric>

namespace holdfast::parallel {

std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

#ifdef OMPI_HAVE_MPI_EXT_FTMPI
std::vector<bool> failed_ranks(MPI_Comm communicator, int size) {
  std::vector<bool> all_failed(static_cast<std::size_t>(size));
  MPI_Group failed = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
  if (MPIX_Comm_get_failed(communicator, &failed) != MPI_SUCCESS) return all_failed;
  int count = 0;
  MPI_Group_size(failed, &count);
  std::vector<int> own(static_cast<std::size_t>(count)), ranks(own.size());
  std::iota(own.begin(), own.end(), 0);
  MPI_Comm_group(communicator, &all);
  MPI_Group_translate_ranks(failed, count, own.data(), all, ranks.data());
  MPI_Group_free(&all);
  MPI_Group_free(&failed);
  for (const int rank : ranks) all_failed[static_cast<std::size_t>(rank)] = true;
  return all_failed;
}
#else
std::vector<bool> failed_ranks(MPI_Comm, int size) {
  return std::vector<bool>(static_cast<std::size_t>(size));
}
#endif

int test_when_complete(MPI_Request& request, int& complete) {
  if (request != MPI_REQUEST_NULL) {
    const int code = MPI_Request_get_status(request, &complete, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || complete == 0) return code;
  }
  return MPI_Test(&request, &complete, MPI_STATUS_IGNORE);
}

}  // namespace holdfast::parallel
