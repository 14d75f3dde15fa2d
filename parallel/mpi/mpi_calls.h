// Wrappers of MPI calls that need care, for all of parallel/mpi.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

namespace holdfast::parallel {

// Returns the sentence of MPI for an error code.
std::string mpi_text(int code);

// Returns which of the `size` ranks of the group are known to have failed; none without ULFM.
std::vector<bool> failed_ranks(MPI_Comm communicator, int size);

// Works like MPI_Test, but does not touch a request that is not complete; returns an MPI error code, and does
// not learn of deaths (failed_ranks()).
//
// MPI_Test of a request whose peer is known to have died frees it, though parts of its message may still be
// in transit. Open MPI 5.0.11 then gives what the peer had sent to the freed receive, and crashes; and when
// such a part of a freed send completes, it ends this process ("Send error after request freed").
int test_when_complete(MPI_Request& request, int& complete);

}  // namespace holdfast::parallel
