// The way out of a group for a rank that ends without the agreement of the others.
#pragma once

#include <string>

#include "parallel/group/membership.h"
#include "runtime/core/result.h"

namespace holdfast::rank {

// Reports `code` to the launcher, and ends this process by SIGKILL if others may wait for it in MPI, which tells
// nobody of an exit code (Membership::is_awaited()). `why` goes to stderr before; empty: it is there already. Returns
// on the last rank, which ends with the code. Any thread, while no other one uses `membership`, or is in a call of it
// that blocks.
void die_if_awaited(Env& env, Membership& membership, bool has_guard, ExitCode code, const std::string& why);

}  // namespace holdfast::rank
