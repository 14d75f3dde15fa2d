// Local communicators are ranks as threads of one process, for tests. They have the same contract as MPI's; a
// rank that destroys its end makes its peers' requests fail, as a dead process would.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"
#include "runtime/os/env.h"

namespace holdfast::parallel {

// Returns `size` connected ends; each is used by one thread.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(int size);
// Returns one for each of `names`, the numbers of the ranks in messages (Communicator::global_rank).
std::vector<std::unique_ptr<Communicator>> make_local_communicators(const std::vector<int>& names);

// Runs body(communicator) on `size` threads of `env` and waits for them; returns the first error by rank, or
// of the threads.
Result<void> run_local_ranks(int size, const std::function<Result<void>(Communicator&)>& body,
                             Env& env = posix_env());

}  // namespace holdfast::parallel
