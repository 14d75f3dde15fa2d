// Ranks as threads of one process: for tests. Same contract as MPI's; a rank that goes away
// (destroys its end) makes its peers' requests fail, as a dead process would.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"

namespace holdfast::inline parallel {

// `size` connected ends; each is used by one thread.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(int size);
// One for each of `names`, which are what sentences call the ranks (Communicator::global_rank).
std::vector<std::unique_ptr<Communicator>> make_local_communicators(const std::vector<int>& names);

// Runs body(communicator) on `size` threads and joins them; returns the first error by rank.
Result<void> run_local_ranks(int size, const std::function<Result<void>(Communicator&)>& body);

}  // namespace holdfast::inline parallel
